"""Compression of documents into keys, at any ratio and across shard edges."""

from hpfun.compression.offsets import compressed_document_offsets, compressed_owner_offsets  # isort: skip
from hpfun.compression.blocks import (
    DocumentCompressionPlan,
    compressed_positions,
    compression_halo_plan,
    document_compression_plan,
)

__all__ = [
    "DocumentCompressionPlan",
    "compressed_document_offsets",
    "compressed_owner_offsets",
    "compressed_positions",
    "compression_halo_plan",
    "document_compression_plan",
]

"""Batch sharding: one plan cuts every per-token tensor of a packed batch."""

from hpfun.batch.decoder import DecoderSequenceLayout, decoder_layout, token_mask_slice
from hpfun.batch.fields import OMNI_CP_TOKEN_FIELDS, FieldSpec, check_fields
from hpfun.batch.labels import IGNORED, label_counts, shift_labels
from hpfun.batch.lengths import lengths_from_cu, lengths_from_positions, truncate
from hpfun.batch.loss import LossScale, loss_scale
from hpfun.batch.manifest import BatchManifest, Entry, describe_batch
from hpfun.batch.plan import BatchPlan, plan_batch, required_global_alignment
from hpfun.batch.report import batch_figures
from hpfun.batch.restore import position_rows, relayout, restore_index
from hpfun.batch.view import BatchView, batch_view
from hpfun.batch.work import causal_work
from hpfun.outcome import Outcome, merge_outcomes
from hpfun.sharding.checks import validate_parallel_sizes
from hpfun.topology import BatchTopology

__all__ = [
    "IGNORED",
    "OMNI_CP_TOKEN_FIELDS",
    "BatchManifest",
    "BatchPlan",
    "BatchTopology",
    "BatchView",
    "DecoderSequenceLayout",
    "Entry",
    "FieldSpec",
    "LossScale",
    "Outcome",
    "batch_figures",
    "batch_view",
    "causal_work",
    "check_fields",
    "decoder_layout",
    "describe_batch",
    "label_counts",
    "lengths_from_cu",
    "lengths_from_positions",
    "loss_scale",
    "merge_outcomes",
    "plan_batch",
    "position_rows",
    "relayout",
    "required_global_alignment",
    "restore_index",
    "shift_labels",
    "token_mask_slice",
    "truncate",
    "validate_parallel_sizes",
]

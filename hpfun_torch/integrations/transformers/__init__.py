"""Context parallelism for models of transformers: DeepSeek-style sparse attention, and ordinary dense attention."""

from hpfun_torch.integrations.transformers.batch import prepare_batch, shifted_labels
from hpfun_torch.integrations.transformers.configs import attention_config
from hpfun_torch.integrations.transformers.enable import ContextParallelOptions, disable, enable_context_parallel
from hpfun_torch.integrations.transformers.training import load_balancing_loss, sum_gradients

__all__ = [
    "ContextParallelOptions",
    "attention_config",
    "disable",
    "enable_context_parallel",
    "load_balancing_loss",
    "prepare_batch",
    "shifted_labels",
    "sum_gradients",
]

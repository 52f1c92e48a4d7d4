"""Optimisers and schedules that fairseq lacks; importing this registers them."""

from .adam_value_clip import ValueClippedAdam
from .adamw_fused import FusedAdam
from .cosine_warmup import CosineWarmupSchedule
from .one_cycle import OneCycleSchedule
from .radam import RAdam

__all__ = ["CosineWarmupSchedule", "FusedAdam", "OneCycleSchedule", "RAdam", "ValueClippedAdam"]

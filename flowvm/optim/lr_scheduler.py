"""The learning rate schedules, under PyTorch's names (WarmupLR, CosineDecayLR are OneFlow's)."""

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.optim._closed_forms import (
    ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, CosineDecayLR, ExponentialLR,
    LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, PolynomialLR, StepLR,
)
from flowvm.optim._compositions import ChainedScheduler, SequentialLR, WarmupLR
from flowvm.optim._cycles import CyclicLR, OneCycleLR, ReduceLROnPlateau
from flowvm.optim._schedule import LRScheduler, LrScheduler as LrScheduler, _LRScheduler

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CosineDecayLR", "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR",
    "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau",
    "SequentialLR", "StepLR", "WarmUpLR", "WarmupLR", "_LRScheduler",
]
# fmt: on
# isort: on
# --- by hand


WarmUpLR = WarmupLR  # OneFlow has both names

__dir__ = listing(globals())

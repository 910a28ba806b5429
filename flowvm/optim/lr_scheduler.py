"""The learning rate schedules, under PyTorch's names (WarmupLR, CosineDecayLR are OneFlow's)."""

from flowvm.loading.listing import listing
from flowvm.optim._closed_forms import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineDecayLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from flowvm.optim._combined import ChainedScheduler, SequentialLR, WarmupLR
from flowvm.optim._cycles import CyclicLR, OneCycleLR, ReduceLROnPlateau
from flowvm.optim._schedule import LRScheduler, _LRScheduler

WarmUpLR = WarmupLR  # OneFlow has both names

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmUpLR",
    "WarmupLR",
    "_LRScheduler",
]
__dir__ = listing(globals())

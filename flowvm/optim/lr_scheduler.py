"""The learning rate schedules, under PyTorch's names (WarmupLR is OneFlow's)."""

from flowvm.optim._closed_forms import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from flowvm.optim._combined import ChainedScheduler, SequentialLR, WarmupLR
from flowvm.optim._cycles import OneCycleLR, ReduceLROnPlateau
from flowvm.optim._schedule import LRScheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmupLR",
]

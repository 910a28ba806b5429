"""Optimizers and learning rate schedules, with PyTorch's names and meaning.

A step issues one instruction a parameter; a schedule only writes numbers into the optimizer's
parameter groups.
Not here: the arithmetic of a step (`ops/updates/optimizer.py`).
"""

from flowvm.optim import lr_scheduler
from flowvm.optim.adam import Adam, AdamW
from flowvm.optim.optimizer import Optimizer
from flowvm.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]

"""Activation checkpointing where PyTorch has it; see flowvm.autograd.checkpoint."""

from flowvm.autograd.checkpoint import checkpoint, checkpoint_sequential
from flowvm.loading.listing import listing

__all__ = ["checkpoint", "checkpoint_sequential"]
__dir__ = listing(globals())

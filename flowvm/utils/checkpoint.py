"""Activation checkpointing where PyTorch has it; see flowvm.autograd.checkpoint."""

from flowvm.autograd.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]

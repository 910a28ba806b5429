"""Computations along a sequence: recurrent networks, attention.

Public ops are the files of this folder. `parts` has the ops behind them, `cpu` the kernels
that go through a whole sequence in one instruction.
Not here: layers (`flowvm.nn.modules`), scans of single numbers (`rows`).
"""

"""Collectives on CUDA devices: the steps that an exchange comes down to, NCCL's calls among them.

Not here: shapes, dtypes and gradients, which stand where an op is declared; communicators and lanes
(`flowvm.cuda.lanes`).
"""

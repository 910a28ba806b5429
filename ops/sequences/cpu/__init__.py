"""Kernels of `flowvm.ops.sequences` on the CPU, and how their work is cut.

Not here: shapes, dtypes and gradients, which stand where an op is declared; how kernels are called
(`flowvm.ops.declare.cpu`).
"""

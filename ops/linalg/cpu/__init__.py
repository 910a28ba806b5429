"""LAPACK on the CPU: how its routines are called from kernels, by address.

Not here: shapes, dtypes and gradients, which stand where an op is declared; how kernels are called
(`flowvm.ops.declare.cpu`).
"""

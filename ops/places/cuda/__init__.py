"""Rules and kernels of `flowvm.ops.places` on CUDA: what an op launches, and on what grid.

Not here: shapes, dtypes and gradients, which stand where an op is declared; what all families share
(`flowvm.ops.declare.cuda`); the driver (`flowvm.cuda`).
"""

"""Rules and kernels of `flowvm.ops.linalg` on CUDA: what an op launches, and on what grid.

Not here: shapes, dtypes and gradients, which stand where an op is declared; the driver
(`flowvm.cuda`).
"""

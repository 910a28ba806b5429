"""Kernels of products with sparse matrices, and of rows grouped and counted.

Not here: shapes, dtypes and gradients, which stand where an op is declared
(`flowvm.ops.sparse.products`).
"""

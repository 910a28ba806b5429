"""Sums of products: matmul and its family, einsum.

Public ops are the files of this folder. `cpu` has GEMM and the register tile, `cuda` the rules that
call cuBLAS.
Not here: convolution, which has the tile's loops in another shape (`planes`); systems and factors
of matrices (`linalg`).
"""

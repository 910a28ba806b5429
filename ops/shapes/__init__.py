"""Tensors made, viewed, cut and joined: ops that compute nothing.

Public ops are the files of this folder. `cuda` has the kernels of what is made by formula.
Not here: elements at positions that are data (`places`); how tensors are put together in one
instruction, and how elements move (`declare`).
"""

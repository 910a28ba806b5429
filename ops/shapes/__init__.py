"""Tensors made, viewed, cut and joined: ops that compute nothing.

Public ops are the files of this folder. `cuda` has the kernels of what is made by formula.
Not here: elements at positions that are data (`places`).
"""

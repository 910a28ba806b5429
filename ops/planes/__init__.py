"""Ops on images and other planes: convolution, pooling, resizing, patches, regions.

Public ops are the files of this folder. `parts` has the ops they are made of; `cpu` and `cuda` have
the kernels.
Not here: the register tile, which convolution shares with matrix products (`products`).
"""

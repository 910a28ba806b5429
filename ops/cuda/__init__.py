"""CUDA kernels and the rules by which ops become launches of them.

Nothing here is imported before a CUDA device is used.
"""

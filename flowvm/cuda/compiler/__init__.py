"""CUDA kernels from plain Python functions: front end, PTX, and its cache.

All that flowvm knows of Numba-CUDA.
Not here: what is compiled, and the driver that loads it.
"""

"""CUDA kernels from plain Python functions: front end, PTX, and its cache."""

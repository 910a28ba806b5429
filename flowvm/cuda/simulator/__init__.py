"""A CUDA device without one: a driver whose functions are Python.

Here: memory with bounds, streams that run late, grids of threads, cuBLAS by NumPy.
Not here: anything that the rest of flowvm asks for by name; it takes the driver's place.
"""

"""Native code from plain Python functions, and a cache of it.

Here: all that flowvm knows of Numba and LLVM on the CPU.
Not here: what is compiled.
"""

"""Collectives on the CPU: the kernel that calls MPI's functions by address.

Not here: shapes, dtypes and gradients, which stand where an op is declared.
"""

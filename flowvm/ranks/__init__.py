"""Processes that compute together, each a *rank*: all ranks, groups of them, MPI underneath.

Here: how many ranks were launched and which this one is, groups and their communicators, MPI's
functions by address, the board on which ranks see each other's standing, and who watches it.
Not here: the collectives, which are instructions (`flowvm.ops.collectives`), and the names that
users know (`flowvm.distributed`).
"""

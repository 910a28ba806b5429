"""Processes that compute together, each a *rank*: all ranks, groups of them, MPI underneath.

Here: the number of launched ranks and of this one, groups and their communicators, MPI's functions
by address, the board on which ranks see each other's progress, and its watcher.
Not here: the collectives, which are instructions (`flowvm.ops.collectives`), and their public names
(`flowvm.distributed`).
"""

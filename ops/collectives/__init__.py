"""Collectives: tensors exchanged among ranks, each an instruction on a stream of its own.

`collectives` has the functions, which make new tensors; `instructions` what they issue, and what
changes a tensor in place.

Not here: groups of ranks and MPI's library (`flowvm.ranks`); global tensors.
"""

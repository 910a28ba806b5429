"""Random numbers: generators, distributions, permutations.

Public ops are the files of this folder. `parts` says which numbers there are, the same ones on
every device; `cuda` has the kernels.
Not here: `flow.cuda`'s names for the one generator (`flowvm.cuda.random`).
"""

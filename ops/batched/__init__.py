"""Ops on the tensors inside `vmap`: levels, and how a call on one example becomes one on all.

`levels` enters and leaves a map; `planning` derives the call on all examples from the op's
declaration, and `physical` the metas; `*_rules` have what a family must say by itself; `calling`
makes the call; `looping` makes it example by example, where there is no other way.
Not here: `flow.func.vmap` itself, and kernels.
"""

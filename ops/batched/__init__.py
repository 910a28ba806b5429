"""Ops on the tensors inside `vmap`: levels, and how a call on one example becomes one on all.

`levels` enters and leaves a map; `plans` derives the call on all examples from the op's
declaration, and `physical` the metas; `*_rules` have what a family must say by itself; `calls`
makes the call; `loop` makes it example by example, where there is no other way.
Not here: `flow.func.vmap` itself, and kernels.
"""

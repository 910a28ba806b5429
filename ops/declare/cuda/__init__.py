"""An op on CUDA: from its metas to launches on a device's stream.

Here: the lowering, kernels from expressions and from CPU bodies, copies, and the pieces of kernels
that all families share.
Not here: a family's rules and kernels (the family's `cuda`); the driver and the compiler
(`flowvm.cuda`).
"""

"""Ops on global tensors: which signatures an op has, which is chosen, how tensors are boxed to it.

`signatures` says what an op does to splits and partial sums, from its declaration; `choosing` takes
the cheapest; `boxing` changes what ranks hold; `calling` runs the op on the parts; `views` does
what views do.
Not here: kernels, and the transport (`flowvm.ops.collectives`).
"""

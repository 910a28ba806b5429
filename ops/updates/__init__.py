"""Changes of parameters and gradients in place, for training.

Here: optimizer steps, the accumulation of gradients, the scaling of losses. None is public:
`optim`, `amp` and `autograd` issue them. `cuda` has the kernels.
Not here: what an optimizer keeps and when it steps (`flowvm.optim`).
"""

"""Captured graphs: the layer between autograd and nn.

`capture` records what Python code issues, `logical` is what that yields, `passes` rewrite it,
`memory` says where values lie, `plan` compiles it for replay. `capturing` and `interpret` are the
two ends that one may want by hand.
Not here: modules, optimizers and what a user's `build` means (`flowvm.nn.graph`); the loops that
replay Plans (`flowvm.vm.workers`).
"""

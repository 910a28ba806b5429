"""The layers: Modules that keep the arguments of ops.

`flowvm.nn` has their public names.
Not here: what a Module is (`flowvm.nn.module`), and computing (`flowvm.ops`).
"""

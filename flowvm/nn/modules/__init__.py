"""The layers: Modules that keep the arguments of ops.

`flowvm.nn` has their public names. What a Module is stands in `flowvm.nn.module`.
"""

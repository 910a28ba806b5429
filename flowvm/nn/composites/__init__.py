"""Functions of nn.functional that are made of ops: some losses and distances, the dropouts, pooling
by norm and back again, randomized activations.

`flowvm.nn.functional` has their public names.
Not here: ops, and whatever has a kernel (`flowvm.ops`); layers (`flowvm.nn.modules`).
"""

"""Sparse tensors: values and their places, both dense tensors, and ops on them.

`pattern` says where values lie, in all layouts; `tensor` has the class of sparse tensors; `table`
has the functions that take them, and `rules` what these do; `products` declares the ops that have
kernels of their own.  All else is made of other rooms' ops.
Not here: `flow.sparse` (`flowvm/sparse.py`).
"""

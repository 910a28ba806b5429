"""Ops that go along rows: reductions, scans, softmax, norms and losses.

Public ops are the files of this folder. `parts` has the ops they are made of and what describes
them for every device; `cpu` and `cuda` have the kernels.
Not here: rows put in order or searched (`places`).
"""

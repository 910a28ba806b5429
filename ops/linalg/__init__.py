"""Linear algebra: systems, factors, spectra, norms and functions of matrices.

Public ops are the files of this folder; `classic` has what PyTorch also, or only, calls by the old
names (`flow.svd`), and what the others have is met as `flow.linalg.svd` (`flowvm/linalg.py`).
`parts` has the ops that they are made of, `cpu` how LAPACK is called, `cuda` kernels of systems.
Not here: products of matrices (`products`).
"""

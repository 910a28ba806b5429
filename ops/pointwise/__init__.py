"""Ops that compute each element from the elements at its place.

Public ops are the files of this folder; most are one line, a scalar expression.
`parts` has what their declarations share.
Not here: the scalar functions (`scalar`), and how kernels are made of expressions (`declare`).
"""

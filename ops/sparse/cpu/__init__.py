"""Kernels of products with sparse matrices, and of rows grouped and counted."""

"""Kernels of `flowvm.ops.products` on the CPU, and how their work is cut."""

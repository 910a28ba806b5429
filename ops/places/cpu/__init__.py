"""Kernels of `flowvm.ops.places` on the CPU, and how their work is cut."""

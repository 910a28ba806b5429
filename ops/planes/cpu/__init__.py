"""Kernels of `flowvm.ops.planes` on the CPU, and how their work is cut."""

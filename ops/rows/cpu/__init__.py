"""Kernels of `flowvm.ops.rows` on the CPU, and how their work is cut."""

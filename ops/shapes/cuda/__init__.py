"""Rules and kernels of `flowvm.ops.shapes` on CUDA."""

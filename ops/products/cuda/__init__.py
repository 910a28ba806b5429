"""Rules and kernels of `flowvm.ops.products` on CUDA."""

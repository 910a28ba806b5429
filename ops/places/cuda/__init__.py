"""Rules and kernels of `flowvm.ops.places` on CUDA."""

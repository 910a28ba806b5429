"""Rules and kernels of `flowvm.ops.random` on CUDA."""

"""Rules and kernels of `flowvm.ops.planes` on CUDA."""

"""Rules and kernels of `flowvm.ops.updates` on CUDA."""

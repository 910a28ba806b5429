"""Rules and kernels of `flowvm.ops.rows` on CUDA."""

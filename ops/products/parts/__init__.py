"""Parts of the public ops of `flowvm.ops.products`, for every device.

Not here: anything public, and kernels of one device.
"""

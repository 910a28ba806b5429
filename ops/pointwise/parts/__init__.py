"""The parts of the public ops of `flowvm.ops.pointwise`, for every device.

Not here: anything public, and kernels of one device.
"""

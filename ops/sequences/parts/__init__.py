"""The parts of the public ops of `flowvm.ops.sequences`, for every device.

Not here: anything public, and kernels of one device.
"""

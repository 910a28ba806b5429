"""What the public ops of `flowvm.ops.sequences` are made of, for every device.

Not here: anything public, and kernels of one device.
"""

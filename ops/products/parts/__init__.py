"""What the public ops of `flowvm.ops.products` are made of, for every device.

Not here: anything public, and kernels of one device.
"""

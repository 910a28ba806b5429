"""What exchanges of all devices are made of.

Not here: kernels and steps of one device (`cpu`, `cuda`).
"""

"""The parts of an exchange that all devices share.

Not here: kernels and steps of one device (`cpu`, `cuda`).
"""

"""The kernel of discrete Fourier transforms.

Not here: dimensions, norms and gradients, which stand where the ops are declared.
"""

"""Where captured graphs will be: the layer between autograd and nn.

Graph capture is not part of this version: every op runs eagerly, and this package has no names.
"""

"""PyTorch's and OneFlow's names beside tensors, ops and layers.

A file here is imported as `flowvm.<name>`: `flowvm/torch_names/mps.py` is `flowvm.mps`, for this
folder is on the path of the package flowvm.  Here: modules that only answer with such names, or say
that there is nothing behind them.  Not here: what they are made of.
"""

__path__.clear()  # no file is a second module, `flowvm.torch_names.mps`

"""Name lookup: late, elsewhere, or not at all.

Here: lazy imports of modules (`lazy.py`), the functions that lower layers need from higher ones
(`providers.py`, on top of all), names of PyTorch that flowvm lacks (`missing_names.py`).  Not here:
files of tensors (`flowvm/files`).
"""

"""Tensors as the rest of Python meets them.

Here: DLPack and NumPy's functions (`protocols.py`), pickle and copy (`pickles.py`), what a DLPack
capsule says of its memory (`capsules.py`), `repr`, `str` and HTML (`printing.py`).
Not here: files (`flowvm/files`).
"""

"""Tensors as the rest of Python meets them.

Here: DLPack, NumPy's functions, pickle and copy (`protocols.py`), what a DLPack capsule says of its
memory (`capsules.py`), `repr`, `str` and HTML (`printing.py`). Not here: files (`flowvm/files`).
"""

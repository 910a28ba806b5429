"""Callers: the Python threads that issue, seen from the instructions they issued.

Here: what issuing touches, whose line and which module an instruction belongs to, what of flowvm a
traceback shows, and Ctrl-C.
Not here: issuing itself (`engine`), and looking at what became of an instruction (`watch`).
"""

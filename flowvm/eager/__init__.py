"""Eager mode: tensors, the interpreter that makes instructions of calls, reading and printing.

Not here: what happens to an instruction after it was issued (`flowvm.vm`), and ops
(`flowvm.ops`).
"""

"""Views of memory: bytes over time and at this moment, what they are for, and who holds them.

What memory a run had is in `flowvm.profiler.run`; nothing is printed here.
"""

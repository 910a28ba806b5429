"""Views of memory: bytes over time and at this moment, what they are for, and who holds them.

Not here: what memory a run had, `flowvm.profiler.run`; what prints a screen.
"""

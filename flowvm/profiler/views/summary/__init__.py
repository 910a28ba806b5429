"""The summary's views: the verdict, the table of ops, and advice with the facts it rests on.

Not here: what each instruction waited for, `flowvm.profiler.analysis`; what prints a screen.
"""

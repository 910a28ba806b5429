"""The summary's views: the verdict, the table of ops, and advice with the facts it rests on.

What each instruction waited for is in `flowvm.profiler.analysis`; nothing is printed here.
"""

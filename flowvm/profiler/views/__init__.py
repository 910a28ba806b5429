"""View models of the profiler's screens: what is shown, with all numbers and texts chosen.

Not here: what numbers mean (`analysis`), and what all screens share (`flowvm.profiler.grammar`).
"""

"""Pure functions over a run: waits, paths, sums, memory, the verifier.

Not here: the VM (a run is a value), and how results are shown (`views`).
"""

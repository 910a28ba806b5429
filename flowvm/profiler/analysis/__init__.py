"""Pure functions over a run: waits, paths, sums, memory, the verifier."""

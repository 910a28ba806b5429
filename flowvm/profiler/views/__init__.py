"""View models of the profiler's screens: what is shown, with all numbers and texts chosen."""

"""LogicalGraph: what a capture yields; its printer, checker, interpreter and plain form.

Not here: anything that changes what a graph computes with (`passes`), or compiles it (`plan`).
"""

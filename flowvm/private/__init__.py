"""What flowvm takes of other packages without their promise: every private name, with its reason.

Here: one table a package, what reads and writes those names, and the probes that find them gone.
Not here: what is done with them.
"""

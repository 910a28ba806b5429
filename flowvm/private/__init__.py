"""The private names of other packages that flowvm uses, each with its reason.

Here: one table a package, functions that read and write those names, and probes that find missing
ones.  Not here: their users.
"""

"""Workers: the loops of threads, and the functions that run in them.

Here: how instructions are executed, shared among threads, launched from Plans and given memory; and
the streams of devices. All of it is native and takes no GIL.
Not here: what Python does before a record is published, or after it was waited for (`engine`).
"""

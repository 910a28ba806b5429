"""The engine: the Python side of the VM.

Here: memory and threads, issuing and waiting, errors, fork and exit.
Not here: looking at what happened (`watch`), and the threads that issue (`callers`).
"""

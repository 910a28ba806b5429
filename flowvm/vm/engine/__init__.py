"""The engine: the Python side of the VM.

Here: memory and threads, issuing and waiting, errors and whose line they belong to, Ctrl-C, fork
and exit. Not here: looking at what happened (`watch`).
"""

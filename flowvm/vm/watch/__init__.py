"""Watching: what the VM did, does, and waits for.

Here: the flight recorder's Python half, traces, the verifier, lively instructions, the watchdog,
the window for `flowvm top`, and the words of error notes. The engine is handed in.
Not here: anything that issues an instruction or changes the machine.
"""

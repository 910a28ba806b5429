"""Observation of the VM: its past, its present, and its waits.

Here: the flight recorder's Python half, traces, the verifier, instructions in flight, the watchdog,
the window for `flowvm top`, and the words of error notes. The engine is handed in.
Not here: anything that issues an instruction or changes the machine.
"""

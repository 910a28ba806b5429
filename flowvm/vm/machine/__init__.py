"""The machine: one int64 array, and the state machine on it.

Here: where every word lies, the language that native code is written in, the scheduler's logic, the
recorder's words, and the rule by which edges follow from operands.
No thread, lock, clock or sleep: tests play the threads.
"""

"""The machine: one int64 array, and the state machine on it.

Here: where every word lies, the language that native code is written in, the scheduler's logic, the
recorder's words, and the rule by which edges follow from operands.
Not here: threads, locks, clocks, sleep (`workers`); tests play the threads.
"""

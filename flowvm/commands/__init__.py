"""The `flowvm` command: the REPL, and the jobs that need no script of one's own.

Not here: the profiler's commands (`flowvm.profiler.front.commands`).
"""

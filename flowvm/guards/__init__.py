"""Guards for a process at any moment: signals and exceptions, forks, ever new shapes.

Here: switches that are always undone (`regions.py`), work that no signal handler may interrupt
(`apart.py`), locks that no exception leaves taken (`locks.py`), locks that a fork takes
(`forks.py`), processes that flowvm starts (`processes.py`), caches bounded by bytes (`kept.py`),
fields that several threads may make at first (`exchange.py`), the interpreter that all of it relies
on (`interpreter.py`).  Not here: the switched, locked or cached things; they are beside their
users.
"""

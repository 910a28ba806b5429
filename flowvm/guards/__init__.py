"""Guards for a process at any moment: signals and exceptions, forks, ever new shapes.

Here: switches that are undone for certain (`regions.py`), work that no signal handler may come into
(`apart.py`), locks that no exception leaves taken (`locks.py`) and those that a fork takes
(`forks.py`), processes that flowvm starts (`processes.py`), caches bounded by bytes (`kept.py`),
fields that several threads make at first (`exchange.py`), the Python that all of it relies on
(`interpreter.py`). Not here: what is switched, locked or kept; that lies beside what uses it.
"""

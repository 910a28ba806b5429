"""Campaigns: tests that run as long as there is time; a seed repeats what it found.

    python -m tools.campaign files --minutes 5
    python -m tools.campaign files --seed 1234        the one case again

A campaign is a module here with `case(seed)`, which gives a case as plain data, and `check(case)`,
which gives "" or what is wrong, in words; `parts(case)` lists its parts, of which shrinking leaves
out as many as it can.
"""

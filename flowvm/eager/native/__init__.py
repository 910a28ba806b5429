"""Native calls: what the generated Python function of an operator does, as compiled code that
CPython calls without a Python frame between.

`entries.py` has what CPython calls; `call.py` the way of one call; `reading.py`, `making.py`,
`places.py` and `publishing.py` its steps; `ways.py` the inline caches.  `courses.py`, `lines.py`,
`keys.py` (`parts.py` in Python), `following.py` and `viewing.py` are for calls of functions that
come to several operators, or to views.  `driving.py` names the functions that native code takes
over as a whole: `starting.py` and `backward.py` are backward, `each.py` steps of optimizers,
`modules.py` calls of modules; `regions.py` is what with statements say, `errors.py` what `except`
does.
`words.py` has the tables of addresses that all look at; `cpython.py` the functions of CPython's
public C API that they call.  `objects.py` makes what Python sees, `check.py` compares it with the
Python function before it is first used, `install.py` decides.

Not here: what a call means, which is the generated function's to say (`flowvm.eager.calls`, the
*twin*), and whatever is out of the ordinary, which is left to it.
"""

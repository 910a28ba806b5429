"""Native calls: what the generated Python function of an operator does, as compiled code that
CPython calls without a Python frame between.

`entry_points.py` has what CPython calls, `call.py` a call of an operator: its `arguments.py`, its
output (`tensor.py`) and `node.py`, its line (`origin.py`), its `record.py`.  `key.py` (in Python:
`key_twin.py`) has the keys of calls, `inline_cache.py` the inline caches.  `trace_cache.py` keeps
traces, what calls of a function come to, and `trace.py` replays them.  `functions.py` names the
functions that native code takes over as a whole: `backward.py`, steps of an `optimizer.py`, calls
of a `module.py`, reads of `values.py`; `regions.py` is what with statements say, `errors.py` what
`except` does.  `words.py` declares the tables of addresses that all look at, `tables.py` fills
them; `cpython.py` has CPython's public C API.  `objects.py` makes what Python sees, `check.py`
compares it with the Python function before it is first used, `install.py` decides.

Not here: what a call means, which is the generated function's to say (`flowvm.eager.calls`, the
*twin*), and whatever is out of the ordinary, which is left to it.
"""

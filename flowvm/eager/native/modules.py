"""A call of a module: that of its `forward`, where it has no hooks."""

from __future__ import annotations

from flowvm.eager.native.cpython import attribute, call_method, clear_error, decref, list_size, word
from flowvm.eager.native.errors import told
from flowvm.eager.native.words import FAILED, MISS, SHARED, SITE


def module_called(site: int, args: int, count: int, names: int) -> int:
    """What `forward` gives; MISS, and it was not called; FAILED."""
    shared = word(site, SITE.SHARED)
    if count < 1:
        return MISS
    if list_size(word(site, SITE.CACHE)) != 0:  # some module has hooks
        hooks = attribute(word(args, 0), word(shared, SHARED.HOOKS_NAME))
        if hooks != word(shared, SHARED.NONE):
            if hooks == 0:
                clear_error()
            decref(hooks)
            return MISS
        decref(hooks)
    result = int(call_method(word(shared, SHARED.FORWARD_NAME), args, count, names))
    if result == FAILED:
        told(word(site, SITE.FUNCTION), word(shared, SHARED.FLOW_ERROR), word(args, 0))
    return result

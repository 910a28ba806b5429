"""Frames of other threads are looked at where nothing is collected: see `Uncollected`."""

from __future__ import annotations

import ast
import gc
import linecache
import sys
import threading
from pathlib import Path

import pytest

import flowvm as flow
from flowvm.guards import apart
from flowvm.nn import forecast, module_calls
from flowvm.profiler.analysis import census
from flowvm.vm.watch import sampling, window

ROOT = Path(flow.__file__).parents[1]
ROOMS = ("flowvm", "ops", "graph", "autograd")


def _deep(frames, begun, over):
    if frames:
        _deep(frames - 1, begun, over)
    else:
        begun.set()
        over.wait(60)


LOOKS = {
    "module_calls": lambda thread: module_calls._running(),
    "forecast": forecast._foretell,
    "census": lambda thread: list(census._variables()),
    "sampling": sampling._frames_of,
    "sampling, all": lambda thread: list(sampling._running()),
    "window": lambda thread: window._compiling(),
    "apart": apart._report,
}
# lines on which a collection would come between two looks at the frames
LOOKING = ("_current_frames()", "f_back", "f_locals", "append(")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", LOOKS)
def test_nothing_is_collected(name):
    """A collection there may let the other thread return from the frames that are looked at."""
    begun, over = threading.Event(), threading.Event()
    other = threading.Thread(target=_deep, args=(40, begun, over), daemon=True)
    other.start()
    assert begun.wait(60)
    places = []
    files = {
        module.__file__ for module in (apart, forecast, module_calls, census, sampling, window)
    }

    def note(phase, info):
        frame = sys._getframe(1)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_code.co_filename in files and any(part in line for part in LOOKING):
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}: {line.strip()}")

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        LOOKS[name](other.ident)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
        over.set()
    other.join(60)
    assert not places


def _unguarded(tree):
    """The lines on which frames of threads are asked for outside of an Uncollected block."""
    guarded = {
        id(inside)
        for block in ast.walk(tree)
        if isinstance(block, ast.With)
        and any("Uncollected()" in ast.unparse(item) for item in block.items)
        for inside in ast.walk(block)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "_current_frames"
        and id(node) not in guarded
    ]


def test_every_look_is_guarded():
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    asking = [path for path in paths if "sys._current_frames" in path.read_text()]
    lines = {path.name: _unguarded(ast.parse(path.read_text())) for path in asking}
    assert len(lines) > 5
    assert not {name: found for name, found in lines.items() if found}


def test_a_look_without_a_guard_is_seen():
    source = "with Uncollected():\n    sys._current_frames()\nf = sys._current_frames()\n"
    assert _unguarded(ast.parse(source)) == [3]

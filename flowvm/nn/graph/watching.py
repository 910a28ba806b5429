"""Which modules a capture runs: while a thread captures, every Module that is called is noted,
before it runs and however the code reached it.

The capture's scope follows it, and its `Surroundings` look at it, so that a Plan holds only as long
as each of them is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from flowvm.eager.modes import Recorder
from flowvm.guards.regions import Switched, reverting
from flowvm.nn.graph.observer import Observer
from flowvm.nn.graph.surroundings import Surroundings
from flowvm.nn.module import Module
from flowvm.nn.module_calls import forget, tell


class _Local(threading.local):
    seen: dict[int, Module] | None = None
    paths: dict[int, str]  # of modules, as the user reaches them
    recorder: Recorder  # told of the module that runs
    surroundings: Surroundings  # told of each, before it runs


_local = _Local()


def _noting(inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        if _local.seen is None:
            return inner(self, *args, **kwargs)
        return _noted(_local.seen, inner, self, args, kwargs)

    return call


def _noted(
    seen: dict[int, Module],
    inner: Callable[..., Any],
    self: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    paths, recorder = _local.paths, _local.recorder
    if id(self) not in paths:  # nobody's attribute: what is below it goes by its class
        for path, module in self.named_modules(prefix=type(self).__name__):
            paths.setdefault(id(module), path)
    if id(self) not in seen:
        seen[id(self)] = self
        _local.surroundings.add_module(self, paths[id(self)])
    with reverting(partial(setattr, recorder, "scope", recorder.scope)):
        recorder.scope = paths[id(self)]
        if recorder.checkpoints:
            with recorder.forgetting(self, paths[id(self)]):
                return inner(self, *args, **kwargs)
        return inner(self, *args, **kwargs)


class watching(Switched):  # noqa: N801 - used like a function
    """Note every module that this thread calls inside, by identity; `recorder.scope` is the path of
    the one that runs, by `paths` (identity to path), which grows by what is found.
    """

    def __init__(
        self, recorder: Recorder, paths: dict[int, str], surroundings: Surroundings
    ) -> None:
        self.recorder, self.paths, self.surroundings = recorder, paths, surroundings
        self.observer = Observer(surroundings.reads)
        surroundings.capture = recorder

    def _switch(self) -> dict[int, Module]:
        seen: dict[int, Module] = {}
        _local.paths, _local.recorder = self.paths, self.recorder
        _local.surroundings = self.surroundings
        _local.seen = seen
        tell(_noting, self)
        self.observer.start()
        return seen

    def _undo(self) -> None:
        self.observer.stop()
        _local.__dict__.clear()  # they hold the model
        forget(self)


def note_graph(graph: Any, modules: Iterable[tuple[str, Module]], without: Collection[str]) -> None:
    """A graph's build is to run as a part of what this thread captures: its modules go by these
    paths, and what it reads is looked at like what the outer build reads.
    """
    if _local.seen is not None:
        for path, module in modules:
            _local.paths.setdefault(id(module), path)
        _local.surroundings.add_graph(graph, without)
        settings = (vars(graph.config), "key", graph.config.key, f"{graph.name}.config")
        _local.surroundings.others.entries.append(settings)

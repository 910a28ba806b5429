"""Modules imported late: not before something of theirs is asked for, and then as they are."""

import importlib.util
import pkgutil
import sys

import pytest

import flowvm
from flowvm.loading.lazy import Lazy, lazy, name_of


@pytest.fixture
def late(tmp_path, monkeypatch):
    """The name of a module that nobody has imported."""
    (tmp_path / "imported_late.py").write_text(
        "number = 1\n\n\ndef twice():\n    return 2 * number\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "imported_late"
    sys.modules.pop("imported_late", None)


def test_a_module_is_imported_when_something_of_it_is_asked_for(late):
    module = lazy(late)
    assert name_of(module) == late
    assert late in repr(module)
    assert late not in sys.modules
    assert module.twice() == 2
    assert late in sys.modules


def test_what_it_has_is_what_the_module_has_now(late):
    module = lazy(late)
    assert module.number == 1
    sys.modules[late].number = 5
    assert module.number == 5
    assert module.twice() == 10


def test_what_is_not_there_is_said_as_by_the_module(late):
    with pytest.raises(AttributeError, match="imported_late"):
        _ = lazy(late).nothing
    with pytest.raises(ModuleNotFoundError):
        _ = lazy("flowvm.no_such_module").nothing


def test_no_module_takes_the_place_of_another_that_is_named_late():
    """Importing `package.x` sets the name `x` of the package, which may have been a late one's."""
    packages = [m.name for m in pkgutil.walk_packages(flowvm.__path__, "flowvm.") if m.ispkg]
    wrong = [
        f"{package}.{name} is {name_of(value)}"
        for package in packages
        for name, value in list(vars(importlib.import_module(package)).items())
        if isinstance(value, Lazy) and name_of(value) != f"{package}.{name}"
        if importlib.util.find_spec(f"{package}.{name}")
    ]
    assert not wrong

"""`make changed` follows a changed file to the tests that it needs."""

from pathlib import Path

import pytest

from tools import changed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ops/rows/softmax.py", "tests/ops/test_generated.py::test_forward[softmax-float32]"),
        ("ops/rows/scan.py", "tests/ops/test_generated.py::test_gradcheck[cumsum]"),
        ("flowvm/vm/small.py", "tests/vm/test_small.py"),
        ("flowvm/nn/utils/prune.py", "tests/nn/test_parametrize.py"),
        ("flowvm/fx/passes/graph_drawer.py", "tests/fx/test_rewriter.py"),
        ("tests/guards/boundaries.py", "tests/eager/test_first_uses.py"),
        ("tests/vm/test_small.py", "tests/vm/test_small.py"),
        ("flowvm/vm/engine/engine.py", "tests/vm/machine/test_sharing.py"),
        ("docs/vm.md", "tests/docs/test_docs.py"),
    ],
)
def test_tests_of_a_file(path: str, expected: str) -> None:
    tests = changed.tests_of([Path(path)])
    assert expected in tests
    assert len(tests) < 120


def test_only_files_that_differ_are_followed() -> None:
    assert all((changed.ROOT / path).parts for path in changed.changed_files(None))
    assert changed.tests_of([Path("pyproject.toml")]) == []


MODULES = [p for p in changed.python_files(*changed.PRODUCT) if p.stem != "__init__"]


def test_each_module_has_tests() -> None:
    assert not [str(path) for path in MODULES if not changed.tests_of_module(path)]


def test_the_table_has_few_modules_each_by_name_and_leads_to_tests() -> None:
    """No pattern stands there, and none that has a test of its own by now."""
    table = changed.table()
    indirect = [p for p in MODULES if not changed.has_direct_test(p)]
    assert set(table) == {str(p) for p in indirect if not changed.tests_by_names(p)}
    assert len(table) < 60
    assert all(list(changed.ROOT.glob(tests)) for tests in table.values())

"""`make changed` follows a changed file to the tests that it needs."""

from pathlib import Path

import pytest

from tools import changed


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("ops/rows/softmax.py", "tests/ops/test_generated.py::test_forward[softmax-float32]"),
        ("ops/rows/scan.py", "tests/ops/test_generated.py::test_gradcheck[cumsum]"),
        ("flowvm/vm/small.py", "tests/vm/test_small.py"),
        ("tests/boundaries.py", "tests/eager/test_first_uses.py"),
        ("tests/vm/test_small.py", "tests/vm/test_small.py"),
        ("flowvm/vm/engine/engine.py", "tests/vm/machine/test_sharing.py"),
        ("docs/vm.md", "tests/test_docs.py"),
    ],
)
def test_tests_of_a_file(path: str, wanted: str) -> None:
    tests = changed.tests_of([Path(path)])
    assert wanted in tests
    assert len(tests) < 120


def test_only_files_that_differ_are_followed() -> None:
    assert all((changed.ROOT / path).parts for path in changed.changed_files(None))
    assert changed.tests_of([Path("pyproject.toml")]) == []

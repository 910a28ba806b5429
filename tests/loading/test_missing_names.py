"""Names that a module lists, loads late, or lacks."""

import math
import types

import pytest

from flowvm.errors import MissingNameError
from flowvm.loading import listing, missing_names


def test_listing_shows_the_modules_own_names():
    module = types.ModuleType("room")
    exec("import math\ndef public(): pass\ndef _private(): pass\n", module.__dict__)
    names = listing.own_names(vars(module))
    assert names == ["public"]
    module.__all__ = names
    shown = listing.listing(vars(module))()
    assert "public" in shown
    assert "math" not in shown


def test_missing_names_are_loaded_late_or_an_error_with_a_similar_one():
    find = missing_names.other_names("room", lambda: ["matmul"], {"pi": "math"})
    assert find("pi") == math.pi
    with pytest.raises(MissingNameError, match="matmul"):
        find("matmull")
    assert missing_names.instead_of("a name that nobody asks for") == ""

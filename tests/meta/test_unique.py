"""Unique objects are shared by copies of what holds them."""

import copy

from flowvm.meta.unique import Unique


def test_unique_objects_are_their_own_copies():
    one = Unique()
    assert copy.copy(one) is one
    assert copy.deepcopy({"held": [one]})["held"][0] is one

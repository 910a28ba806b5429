"""The campaign's changes to files are themselves right."""

import json

from tools.campaign.files import changed_tree, text_of


def test_one_value_that_is_put_inside_itself_makes_no_circle():
    value = [1, [2]]
    tree = changed_tree("[0, 0]", [["set", [0], value], ["set", [0, 1], value]])
    assert json.loads(text_of(tree)) == [[1, [1, [2]]], 0]
    assert value == [1, [2]]
    tree = changed_tree("[[1]]", [["copy", [0, 0], [0]], ["double", [0], []]])
    assert json.loads(text_of(tree)) == [[[1], [1]]]

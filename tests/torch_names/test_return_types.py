"""The results of functions with several results, against PyTorch's return_types."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import return_types

# not here: functions of complex results
ABSENT = {"pytree_register_structseq"}


def test_the_names_and_fields_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    assert {*torch.return_types.__all__} - {*return_types.__all__} == ABSENT
    assert {*return_types.__all__} <= {*torch.return_types.__all__}
    for name in return_types.__all__:
        mine, theirs = getattr(return_types, name), getattr(torch.return_types, name)
        if isinstance(theirs, type):
            assert mine.__name__ == name
            assert mine.__module__ == "flowvm.return_types"
            for what in ("__match_args__", "n_fields", "n_sequence_fields", "n_unnamed_fields"):
                assert getattr(mine, what) == getattr(theirs, what)


SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]])
ALONG = {"cummax", "cummin", "max", "median", "min", "nanmedian"}
ARGUMENTS: dict[str, Any] = {
    "histogram": lambda lib, x: (x, 3),
    "histogramdd": lambda lib, x: (x, [2, 2]),
    "kthvalue": lambda lib, x: (x, 1),
    "linalg_lstsq": lambda lib, x: (x, x),
    "linalg_solve_ex": lambda lib, x: (x, x),
    "lu_unpack": lambda lib, x: tuple(lib.linalg.lu_factor(x)),
    "topk": lambda lib, x: (x, 1),
    "triangular_solve": lambda lib, x: (x, x),
    **dict.fromkeys(ALONG, lambda lib, x: (x, 1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in return_types.__all__ if n != "all_return_types"])
def test_a_function_returns_its_class(name: str) -> None:
    torch = pytest.importorskip("torch")
    short, out = name.removesuffix("_out"), name.endswith("_out")
    results = []
    for lib in (flow, torch):
        x = lib.tensor(SQUARE)
        args = ARGUMENTS.get(short, lambda lib, x: (x,))(lib, x)
        room = lib.linalg if short.startswith("linalg_") else lib
        function = getattr(room, short.removeprefix("linalg_"))
        result = function(*args)
        if out:
            outs = tuple(lib.empty(0, dtype=part.dtype) for part in result)
            result = function(*args, out=outs)
            assert all(a is b for a, b in zip(result, outs, strict=True))
        results.append(result)
    mine, theirs = results
    assert type(theirs) is getattr(torch.return_types, name)
    assert type(mine) is getattr(return_types, name)
    assert repr(mine).split("=")[0] == repr(theirs).split("=")[0].replace("torch", "flow")


def test_they_are_tuples_with_names() -> None:
    tensor = flow.tensor([[1.0, 5.0], [7.0, 2.0]]).max(1)
    values, indices = tensor
    assert isinstance(tensor, tuple)
    assert tensor.values is values is tensor[0]
    assert tensor.indices is indices
    assert repr(tensor) == (
        "flow.return_types.max(\nvalues=tensor([5., 7.]),\nindices=tensor([1, 0]))"
    )
    assert not hasattr(tensor, "_fields")
    moved = type(tensor)(t + 1 for t in tensor)  # as programs go through nested tuples
    assert moved.values.tolist() == [6, 8]
    for other in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert type(other) is return_types.max
        assert other.values.tolist() == [5, 7]
    match tensor:
        case return_types.max(first, _):
            assert first is values
    with pytest.raises(AttributeError):
        tensor.values = indices  # type: ignore[misc]
    with pytest.raises(AttributeError):
        tensor.other = 1
    with pytest.raises(TypeError, match=r"max\(\) takes a 2-sequence \(3-sequence given\)"):
        return_types.max((1, 2, 3))


def test_they_go_through_graphs_and_maps() -> None:
    x = flow.tensor([[1.0, 5.0], [7.0, 2.0]])
    step = flow.compile(lambda x: x.max(1))
    for _ in range(3):
        result = step(x)
        assert type(result) is return_types.max
        assert result.indices.tolist() == [1, 0]
    mapped = flow.vmap(lambda row: row.max(0))(x)
    assert type(mapped) is return_types.max
    assert mapped.values.tolist() == [5, 7]

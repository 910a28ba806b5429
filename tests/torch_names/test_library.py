"""Ops of one's own: schemas, functions by device, gradients, and the findings of `opcheck`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import flowvm as flow
from flowvm import library
from flowvm.compat import operators


@library.custom_op("mine::cube", mutates_args=())
def cube(x: flow.Tensor, scale: float = 1.0, *, shift: int = 0) -> flow.Tensor:
    return flow.from_numpy(x.numpy() ** 3 * scale + shift)


@cube.register_fake
def _cube_fake(x, scale=1.0, *, shift=0):
    return flow.empty_like(x)


def _keep(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


cube.register_autograd(
    lambda ctx, g: (g * 3 * ctx.scale * ctx.saved_tensors[0] ** 2, None), setup_context=_keep
)


def test_called_by_its_schema():
    x = flow.tensor([2.0], requires_grad=True)
    assert cube(x, 2.0, shift=1).tolist() == [17.0]
    cube(x=x, scale=2.0).sum().backward()
    assert x.grad.tolist() == [24.0]
    assert operators.__getattr__("mine").cube.default(flow.ones(1)).tolist() == [1.0]
    assert str(cube._schema) == "mine::cube(Tensor x, float scale=1.0, *, SymInt shift=0) -> Tensor"
    for args, kwargs, match in (
        ((1,), {}, "type 'Tensor' for argument 'x', got int"),
        ((x, "a"), {}, "type 'float' for argument 'scale'"),
        ((), {}, "missing value for argument 'x'"),
        ((x,), {"z": 1}, "'z' is unknown"),
        ((x, 1.0, 2), {}, "at most 2 positional"),
    ):
        with pytest.raises(TypeError, match=match):
            cube(*args, **kwargs)


def test_without_values_and_without_a_fake():
    assert cube(flow.ones(2, 3, device="meta")).shape == (2, 3)

    @library.custom_op("mine::plain", mutates_args=())
    def plain(x: flow.Tensor) -> flow.Tensor:
        return x * 2

    with pytest.raises(NotImplementedError, match="no fake impl"):
        plain(flow.ones(2, device="meta"))
    x = flow.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"mine::plain, which has no gradient"):
        plain(x).sum().backward()


def test_lists_and_several_outputs():
    @library.custom_op("mine::sums", mutates_args=())
    def sums(xs: Sequence[flow.Tensor], by: flow.Tensor | None) -> tuple[flow.Tensor, flow.Tensor]:
        total = xs[0] + xs[1]
        return total, total * (2 if by is None else by)

    sums.register_autograd(lambda ctx, a, b: ([a + 2 * b] * 2, None))
    x, y = flow.ones(2, requires_grad=True), flow.ones(2)
    a, b = sums([x, y], None)
    (a + b).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_what_it_changes():
    @library.custom_op("mine::fill", mutates_args={"x"})
    def fill(x: flow.Tensor, value: float) -> None:
        x.fill_(value)

    x = flow.zeros(2)
    assert fill(x, 3) is None
    assert x.tolist() == [3, 3]
    assert x._version > 0

    @library.custom_op("mine::same", mutates_args=())
    def same(x: flow.Tensor) -> flow.Tensor:
        return x

    with pytest.raises(ValueError, match="neither an input nor share memory"):
        same(x)


def test_libraries():
    lib = library.Library("theirs", "DEF")
    assert lib.define("scaled(Tensor x, int[] y=[1, 2], *, str? m=None) -> Tensor") == "scaled"
    scaled = operators.__getattr__("theirs").scaled
    with pytest.raises(NotImplementedError, match="could not run 'theirs::scaled'"):
        scaled(flow.ones(1))
    lib.impl("scaled", lambda x, y, m=None: x * sum(y), "CompositeImplicitAutograd")
    x = flow.ones(1, requires_grad=True)
    scaled(x).sum().backward()
    assert x.grad.tolist() == [3.0]
    for call, match in (
        (lambda: lib.define("scaled(Tensor x) -> Tensor"), "already"),
        (lambda: lib.define("no schema"), "is not a schema"),
        (lambda: library.Library("aten", "DEF"), "reserved"),
        (lambda: library.Library("theirs", "IMPL").define("x() -> ()"), "defines no ops"),
        (lambda: library.define("nospace", "(Tensor x) -> Tensor"), "space::name"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    lib._destroy()
    with pytest.raises(AttributeError, match=r"no operator theirs\.scaled"):
        operators.__getattr__("theirs").scaled  # noqa: B018


def test_functions_of_devices():
    library.define("mine::product", "(Tensor x, Tensor y) -> Tensor")

    @library.impl("mine::product", "cpu")
    def product(x, y):
        return x @ y

    library.register_fake("mine::product", lambda x, y: x.new_empty(x.shape[0], y.shape[1]))
    op = operators.__getattr__("mine").product
    assert op(flow.ones(2, 3), flow.ones(3, 4)).tolist() == [[3.0] * 4] * 2
    assert set(library.opcheck(op, (flow.ones(2, 3), flow.ones(3, 4))).values()) == {"SUCCESS"}
    with pytest.raises(AttributeError, match="no op 'mine::square'"):
        library.register_autograd("mine::square", lambda ctx, g: g)


def test_opcheck_finds_what_is_wrong():
    assert set(library.opcheck(cube, (flow.ones(2, requires_grad=True),)).values()) == {"SUCCESS"}

    @library.custom_op("mine::wrong", mutates_args=())
    def wrong(x: flow.Tensor) -> flow.Tensor:
        return x.add_(1).sum()

    wrong.register_fake(lambda x: flow.empty_like(x))
    outcome = library.opcheck(wrong, (flow.ones(2),), raise_exception=False)
    assert "changes its argument x" in str(outcome["test_schema"])
    assert "its fake gives" in str(outcome["test_faketensor"])
    with pytest.raises(RuntimeError, match="has no gradient"):
        library.opcheck(
            wrong, (flow.ones(2, requires_grad=True),), test_utils="test_autograd_registration"
        )


def test_schemas_of_annotations():
    def f(a: flow.Tensor, b: flow.Tensor | None, c: list[flow.Tensor], d: Sequence[int],
          e: str = "x", f: bool = True, g: int | float = 1, h: flow.dtype | None = None,
          ) -> tuple[flow.Tensor, flow.Tensor]: ...  # fmt: skip

    f.__annotations__ = {
        "a": flow.Tensor, "b": flow.Tensor | None, "c": list[flow.Tensor], "d": Sequence[int],
        "e": str, "f": bool, "g": int | float, "h": flow.dtype | None,
        "return": tuple[flow.Tensor, flow.Tensor],
    }  # fmt: skip
    assert library.infer_schema(f, mutates_args=("a",)) == (
        '(Tensor(a!) a, Tensor? b, Tensor[] c, SymInt[] d, str e="x", bool f=True, Scalar g=1, '
        "ScalarType? h=None) -> (Tensor, Tensor)"
    )
    for function, args, match in (
        (lambda x: x, (), "must have a type annotation"),
        (f, ("q",), "mutates_args has"),
    ):
        with pytest.raises(ValueError, match=match):
            library.infer_schema(function, mutates_args=args)

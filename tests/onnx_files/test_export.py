"""`flow.onnx.export` as a call: its arguments, its file, the calls that it refuses."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.nn import functional as F

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.onnx_files.helpers import check, onnx, run


def values(*shape: int) -> flow.Tensor:
    return flow.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))


X = values(4, 6)


def test_a_path_and_an_open_file(tmp_path: Path) -> None:
    path, file = tmp_path / "net.onnx", io.BytesIO()
    proto = flow.onnx.export(nn.Linear(6, 3), (X,), path)
    flow.onnx.export(nn.Linear(6, 3), X, file)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.read_bytes() == proto.SerializeToString()
    assert len(file.getvalue()) == len(path.read_bytes())


def test_names() -> None:
    def both(first: Any, rest: Any, *, third: Any) -> Any:
        return first + rest["a"], rest["b"] * third

    proto = flow.onnx.export(both, (X, {"a": X, "b": X}), kwargs={"third": X})
    assert [i.name for i in proto.graph.input] == ["first", "rest_0", "rest_1", "third"]
    named = flow.onnx.export(
        both, (X, {"a": X, "b": X}), kwargs={"third": X}, input_names=["p", "q"],
        output_names=["sum", "product"],
    )  # fmt: skip
    assert [i.name for i in named.graph.input] == ["p", "q", "rest_1", "third"]
    assert [o.name for o in named.graph.output] == ["sum", "product"]
    inputs = {n: X.numpy() for n in ("p", "q", "rest_1", "third")}
    np.testing.assert_allclose(run(named, inputs)[1], X.numpy() ** 2)


def test_nodes_say_their_module_and_line() -> None:
    proto = flow.onnx.export(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), X)
    (relu,) = [n for n in proto.graph.node if n.op_type == "Relu"]
    assert relu.name == "/1/Relu"
    assert "test_export.py:" in relu.doc_string


def test_an_input_that_is_given_back_and_one_that_nobody_uses() -> None:
    proto = check(lambda a, b: (a, a + 1, a), X, X)
    assert len(proto.graph.input) == 2


def test_the_opset() -> None:
    assert flow.onnx.export(F.relu, X).opset_import[0].version == 18
    newer = min(onnx.defs.onnx_opset_version(), 21)
    check(nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Softmax(-1)), X, opset_version=newer)
    for wrong in (9, 10**6, "18"):
        with pytest.raises(ArgumentError, match="opset_version is 18 to"):
            flow.onnx.export(F.relu, X, opset_version=wrong)


def test_modules_are_in_eval_and_then_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).eval(), nn.Dropout())
    proto = flow.onnx.export(model, X)
    assert "BatchNormalization" in {n.op_type for n in proto.graph.node}
    assert [m.training for m in model.modules()] == [True, True, False, True]
    model_file = flow.onnx.export(model, X, training=flow.onnx.TrainingMode.PRESERVE)
    assert "RandomUniformLike" in {n.op_type for n in model_file.graph.node} - {
        n.op_type for n in proto.graph.node
    }
    assert [m.training for m in model.modules()] == [True, True, False, True]
    with pytest.raises(ArgumentTypeError, match="TrainingMode"):
        flow.onnx.export(model, X, training="eval")


def test_an_op_without_a_translation_is_named_with_its_line() -> None:
    def special(a: Any) -> Any:
        return flow.special.bessel_j0(a)

    line = special.__code__.co_firstlineno + 1
    with pytest.raises(ArgumentError, match=rf"bessel_j0 at .*test_export\.py:{line} has no"):
        flow.onnx.export(special, X)
    mean, var = flow.zeros(6), flow.ones(6)
    with pytest.raises(ArgumentError, match=r"batch_norm at .*call eval\(\)"):
        flow.onnx.export(lambda a: F.batch_norm(a, mean, var, training=True), X)
    with pytest.raises(ArgumentError, match=r"inverse.*other ops"):
        flow.onnx.export(lambda a: flow.linalg.inv(a), values(3, 3))


def test_a_tensor_from_outside_that_is_changed() -> None:
    count = flow.zeros(6)
    with pytest.raises(ArgumentError, match=r"changed in place.*keeps nothing"):
        flow.onnx.export(lambda a: a + count.add_(1), X)
    assert count.sum().item() == 0


def test_python_that_decides_by_a_value() -> None:
    with pytest.raises(CaptureError):
        flow.onnx.export(lambda a: a * 2 if a.sum().item() > 0 else a, X)
    with pytest.raises(CaptureError, match="shape of its result"):
        flow.onnx.export(lambda a: a[a > 0], X)


@pytest.mark.parametrize(
    "more",
    [
        {"dynamic_axes": {"colour": {0: "n"}}},
        {"dynamic_shapes": [{0: "n"}, None]},
        {"custom_opsets": {"mine": 1}},
        {"custom_translation_table": {F.relu: F.gelu}},
        {"verify": True},
        {"export_modules_as_functions": True},
    ],
)
def test_what_cannot_be_asked_for(more: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(more))):
        flow.onnx.export(F.relu, X, **more)


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentTypeError, match="args is a tensor or a tuple"):
        flow.onnx.export(F.relu, 3)
    with pytest.raises(ArgumentTypeError, match="takes a module"):
        flow.onnx.export(3, X)
    with pytest.raises(ArgumentError, match="input_names"):
        flow.onnx.export(F.relu, X, input_names=["a", "b"])
    with pytest.raises(ArgumentError, match="output_names"):
        flow.onnx.export(lambda a: (a, a), X, output_names=["a", "a"])
    with pytest.raises(TypeError, match="colour"):
        flow.onnx.export(F.relu, X, colour=True)


def test_every_argument_of_pytorch_has_its_name_and_place() -> None:
    torch_onnx = pytest.importorskip("torch.onnx")
    import inspect

    theirs = inspect.signature(torch_onnx.export).parameters
    ours = inspect.signature(flow.onnx.export).parameters
    assert [*ours][:3] == [*theirs][:3]
    assert set(theirs) <= set(ours)
    for name, parameter in theirs.items():
        assert ours[name].kind is parameter.kind


def test_other_dtypes() -> None:
    layers = nn.Linear(6, 3), nn.LayerNorm(3), nn.Softmax(-1)
    check(nn.Sequential(*layers).double(), X.double(), tol=1e-12)
    check(nn.Sequential(*layers).half(), X.half(), tol=5e-3)
    proto = flow.onnx.export(nn.Sequential(*layers).to(flow.bfloat16), X.to(flow.bfloat16))
    onnx.checker.check_model(proto, full_check=True)
    (bias,) = [i for i in proto.graph.initializer if i.name == "0.bias"]
    expected = layers[0].bias.detach().float().numpy()
    bits = np.frombuffer(bias.raw_data, np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(bits.view(np.float32), expected)


def test_mixed_precision_is_in_the_file() -> None:
    layer = nn.Linear(6, 3)

    def mixed(a: Any) -> Any:
        with flow.autocast("cpu", flow.float16):
            return layer(a)

    proto = check(mixed, X, tol=1e-3)
    assert "Cast" in {n.op_type for n in proto.graph.node}


def test_tensors_of_no_elements_and_of_no_dimensions() -> None:
    check(lambda a: (a[:0] + 1, a[:, :0].sum(1), flow.cat([a[:0], a])), X)
    check(lambda a: (a * 2 + a.sum(), a.softmax(0), a.max(0)), flow.tensor(3.0))


def test_complex_numbers_are_turned_down() -> None:
    with pytest.raises(ArgumentError, match=r"onnx\.export: a is complex64"):
        flow.onnx.export(lambda a: a * 2, X.to(flow.complex64))
    with pytest.raises(ArgumentError, match=r"onnx\.export: .*complex64"):
        flow.onnx.export(lambda a: flow.complex(a, a), X)

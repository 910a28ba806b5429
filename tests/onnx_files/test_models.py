"""The model scripts, exported: onnxruntime gives flowvm's results."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.onnx_files.helpers import check, onnx, run

MODELS = Path(__file__).parents[2] / "tutorials" / "models"


def script(name: str) -> dict[str, Any]:
    """Return the names of a script before it trains: run it up to the end of `make`."""
    path = MODELS / f"{name}.py"
    tree = ast.parse(path.read_text())
    ends = [
        k for k, n in enumerate(tree.body) if isinstance(n, ast.FunctionDef) and n.name == "make"
    ]
    tree.body = tree.body[: ends[0] + 1]
    own: dict[str, Any] = {"__name__": name}
    before = list(sys.path)
    sys.path.insert(0, str(MODELS))
    try:
        exec(compile(tree, str(path), "exec"), own)
    finally:
        sys.path[:] = before
    return own


def values(*shape: int) -> flow.Tensor:
    return flow.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))


def tokens(rows: int, length: int, below: int) -> flow.Tensor:
    return flow.from_numpy(np.random.default_rng(0).integers(0, below, (rows, length)))


def settled(model: Any) -> Any:
    """Set batch statistics that differ from a new model's; return the model."""
    for k, module in enumerate(model.modules()):
        if isinstance(module, nn.BatchNorm2d):
            with flow.no_grad():
                module.running_mean.fill_(0.1 * (k % 3))
                module.running_var.fill_(1.5)
    return model


def test_an_mlp() -> None:
    check(script("mlp")["make"](flow), values(3, 1, 8, 8))


def test_resnet18() -> None:
    proto = check(settled(script("resnet18")["make"](flow)), values(2, 3, 16, 16), tol=1e-4)
    kinds = [n.op_type for n in proto.graph.node]
    assert kinds.count("Conv") == 20
    assert kinds.count("BatchNormalization") == 20
    assert "layers.3.bn2.running_mean" in {i.name for i in proto.graph.initializer}


def test_a_vision_transformer() -> None:
    own = script("vit")
    check(own["make"](flow), values(2, 1, own["SIZE"], own["SIZE"]), tol=1e-4)


def test_bert() -> None:
    own = script("bert_tiny")
    x = tokens(2, 9, own["PAD"])
    x[1, 6:] = own["PAD"]
    check(own["make"](flow), x, tol=1e-4)


def test_gpt() -> None:
    own = script("gpt")
    check(own["make"](flow), tokens(2, 12, len(own["CHARACTERS"])), tol=1e-4)


def test_a_unet() -> None:
    check(settled(script("unet")["make"](flow)), values(2, 1, 8, 8), tol=1e-4)


def test_a_vae() -> None:
    own = script("vae")
    proto = check(own["make"](flow), values(3, 64), values(3, own["LATENT"]))
    assert [o.name for o in proto.graph.output] == ["output_0", "output_1", "output_2"]


def test_a_dcgan() -> None:
    own = script("dcgan")
    both = own["make"](flow)
    check(settled(both["generator"]), values(2, own["NOISE"], 1, 1), tol=1e-4)
    check(settled(both["discriminator"]), values(2, 1, 16, 16), tol=1e-4)


def test_a_language_model_of_lstm() -> None:
    lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True)
    check(lstm, values(6, 3, 5))
    check(lstm, values(6, 3, 5), (values(4, 3, 4), values(4, 3, 4) * 0.5))
    check(nn.GRU(5, 4, batch_first=True, bidirectional=True), values(3, 6, 5))
    check(nn.RNN(5, 4), values(6, 3, 5))
    check(nn.RNN(5, 4, nonlinearity="relu", bias=False), values(6, 3, 5))


def test_a_graph_and_a_function_that_calls_a_module() -> None:
    class Net(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(6, 3)

        def build(self, x: Any) -> Any:
            return self.model(x).softmax(-1)

    proto = check(Net(), values(4, 6))
    assert {i.name for i in proto.graph.initializer} == {"model.weight", "model.bias"}
    layer = nn.Linear(6, 3)
    check(lambda a: {"y": layer(a), "more": [a * 2, None, 3]}, values(4, 6))
    check(flow.compile(layer), values(4, 6))


def test_weights_that_are_tied_are_there_once() -> None:
    own = script("bert_tiny")
    proto = flow.onnx.export(own["make"](flow), tokens(1, 4, 3))
    names = [i.name for i in proto.graph.initializer]
    assert len(names) == len(set(names))
    assert "words.weight" in names
    assert "decoder.weight" not in names


def test_parameters_as_inputs() -> None:
    layer, x = nn.Linear(6, 3), values(4, 6)
    proto = flow.onnx.export(layer, x, export_params=False)
    onnx.checker.check_model(proto, full_check=True)
    assert [i.name for i in proto.graph.input] == ["input", "weight", "bias"]
    weight = values(3, 6) + 1
    outputs = run(proto, {"input": x.numpy(), "weight": weight.numpy(), "bias": np.zeros(3, "f")})
    np.testing.assert_allclose(outputs[0], (x @ weight.T).numpy(), rtol=1e-5)
    both = flow.onnx.export(layer, x, keep_initializers_as_inputs=True)
    assert len(both.graph.input) == 3
    np.testing.assert_allclose(
        run(both, {"input": x.numpy()})[0], layer(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )

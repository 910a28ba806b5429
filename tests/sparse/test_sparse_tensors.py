"""Sparse tensors as values: text, files, copies, SciPy, modules, graphs, vmap's neighbours."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import flowvm as flow
from flowvm import nn
from flowvm.errors import FileError, FlowError

LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
DENSE = np.array([[0, 2, 0, 0], [0, 0, 0, 0], [3, 0, 0, 4], [0, 0, 5, 0]], np.float32)


def tensor_of(layout: str) -> Any:
    """Return the matrix in another layout."""
    return flow.tensor(DENSE).to_sparse(layout=getattr(flow, layout), blocksize=(2, 2))


def equal(x: Any, y: Any) -> bool:
    return x.layout is y.layout and np.array_equal(x.to_dense().numpy(), y.to_dense().numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_tensor_is_kept_by_files_and_copies(layout: str, tmp_path: Path) -> None:
    x = tensor_of(layout)
    flow.save({"a": [x], "b": flow.ones(2)}, tmp_path / "file")
    assert equal(flow.load(tmp_path / "file")["a"][0], x)
    assert equal(pickle.loads(pickle.dumps(x)), x)
    copied = copy.deepcopy(x.requires_grad_())
    assert copied.requires_grad
    assert equal(copied, x)
    assert copied.values().detach().numpy() is not x.values().detach().numpy()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    flow.save({"a": tensor_of("sparse_csr")}, tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    wrong = data.replace(b'sparse_csr\\",[4,4]', b'sparse_csr\\",[4,1]')
    assert wrong != data
    (tmp_path / "file").write_bytes(wrong)
    with pytest.raises(FileError, match="damaged"):
        flow.load(tmp_path / "file")


def test_files_of_pytorch_have_sparse_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(DENSE)
    torch.save({"coo": x.to_sparse(), "csr": x.to_sparse_csr()}, tmp_path / "file")
    loaded = flow.load(tmp_path / "file")
    assert equal(loaded["coo"], tensor_of("sparse_coo"))
    assert loaded["coo"].is_coalesced()
    assert equal(loaded["csr"], tensor_of("sparse_csr"))


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr", "lil"])
def test_scipy_goes_in_and_out(form: str) -> None:
    matrix = scipy.sparse.csr_array(DENSE).asformat(form)
    x = flow.sparse.from_scipy(matrix)
    assert np.array_equal(x.to_dense().numpy(), DENSE)
    again = flow.sparse.to_scipy(x)
    assert again.format == ("coo" if form == "lil" else form)
    assert np.array_equal(again.toarray(), DENSE)


def test_text_is_laid_out_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch")
    indices, values = [[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0]
    for dtype in ("float32", "float64"):
        for layout in ("coo", "csr"):
            texts = []
            for lib in (flow, torch):
                x = lib.sparse_coo_tensor(
                    indices, values, (2, 3), dtype=getattr(lib, dtype), check_invariants=True
                ).coalesce()
                texts.append(
                    repr(getattr(x, f"to_sparse_{layout}" if layout != "coo" else "clone")())
                )
            joint = [" ".join(t.replace("torch.", "flow.").split()) for t in texts]
            assert joint[0] == joint[1]


def test_a_module_has_a_sparse_buffer(seed: int) -> None:
    class Net(nn.Module):
        def __init__(self, layout: str) -> None:
            super().__init__()
            self.register_buffer("adjacency", tensor_of(layout))
            self.lin = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.adjacency @ self.lin(x)

    net, other = Net("sparse_csr"), Net("sparse_csr")
    other.load_state_dict(net.state_dict())
    x = flow.randn(4, 3)
    assert np.array_equal(net(x).detach().numpy(), other(x).detach().numpy())
    assert net.double().adjacency.dtype is flow.float64

    class Graph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = other

        def build(self, x: Any) -> Any:
            return self.net(x)

    graph = Graph()
    for _ in range(3):
        assert np.allclose(graph(x).numpy(), other(x).detach().numpy(), rtol=1e-6)


def test_a_graph_takes_and_gives_sparse_tensors(seed: int) -> None:
    @flow.compile
    def step(a: Any, x: Any) -> Any:
        return a @ x, a * 2

    x, first = flow.randn(4, 3), tensor_of("sparse_csr")
    other = flow.sparse_csr_tensor(
        first.crow_indices(), first.col_indices(), flow.tensor([1.0, 2.0, 3.0, 4.0]), (4, 4)
    )
    for a in (first, other, first):
        product, twice = step(a, x)
        assert np.allclose(product.numpy(), a.to_dense().numpy() @ x.numpy(), rtol=1e-5, atol=1e-6)
        assert equal(twice, a * 2)
    fewer = tensor_of("sparse_coo")  # of another layout
    assert np.allclose(step(fewer, x)[0].numpy(), DENSE @ x.numpy(), rtol=1e-5, atol=1e-6)


def test_a_training_step_in_a_graph_is_that_of_eager_code(seed: int) -> None:
    adjacency = tensor_of("sparse_coo")

    def train(compiled: Any) -> list[float]:
        flow.manual_seed(0)
        weight = flow.randn(3, 2, requires_grad=True)
        x = flow.randn(4, 3)
        optimizer = flow.optim.SGD([weight], lr=0.1)

        @compiled
        def step(x: Any) -> Any:
            loss = (adjacency @ (x @ weight)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return [step(x).item() for _ in range(3)]

    assert np.allclose(train(flow.compile), train(lambda f: f), rtol=1e-5)


def test_values_get_gradients_twice() -> None:
    indices = flow.tensor([[0, 1, 1], [1, 0, 1]])
    values = flow.tensor([1.0, -2.0, 0.5], dtype=flow.float64, requires_grad=True)
    x = flow.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=flow.float64, requires_grad=True)

    def product(values: Any, x: Any) -> Any:
        return flow.sparse_coo_tensor(indices, values, (2, 2)) @ x

    assert flow.autograd.gradcheck(product, (values, x))
    assert flow.autograd.gradgradcheck(product, (values, x))
    matrix = flow.sparse_coo_tensor(indices, values, (2, 2))
    assert not matrix.is_leaf
    assert matrix.grad is None
    (gradient,) = flow.autograd.grad((matrix @ x).sum(), matrix)
    assert gradient.layout is flow.sparse_coo
    assert gradient._nnz() == 3


def test_meta_tensors_have_shapes() -> None:
    x = tensor_of("sparse_csr").to("meta")
    assert x.is_meta
    assert x._nnz() == 4
    assert (x @ flow.empty(4, 2, device="meta")).shape == (4, 2)
    assert x.to_dense().shape == (4, 4)


def test_products_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    matrix = scipy.sparse.random(3000, 500, 0.01, format="csr", dtype=np.float32, random_state=1)
    x, y = flow.sparse.from_scipy(matrix), flow.tensor(rng.random((500, 70), np.float32))
    before = flow.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            flow.set_num_threads(threads)
            results.append((x @ y).numpy())
    finally:
        flow.set_num_threads(before)
    assert np.array_equal(*results)
    assert np.allclose(results[0], matrix @ y.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [0, 1, 5, 16, 33, 64, 130])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_products_of_any_width(width: int, dtype: str, rng: np.random.Generator) -> None:
    x = tensor_of("sparse_csr").to(getattr(flow, dtype))
    y = rng.integers(-9, 9, (4, width)).astype(dtype)
    assert np.array_equal((x @ flow.tensor(y)).numpy(), DENSE.astype(dtype) @ y)


def test_an_index_that_only_the_kernel_sees_is_an_error() -> None:
    x = flow.sparse_csr_tensor(flow.tensor([0, 1]), flow.tensor([7]), flow.ones(1), (1, 2))
    with pytest.raises(FlowError, match="7"):
        (x @ flow.ones(2, 2)).numpy()
    with flow.sparse.check_sparse_tensor_invariants(), pytest.raises(FlowError, match="7"):
        flow.sparse_csr_tensor(flow.tensor([0, 1]), flow.tensor([7]), flow.ones(1), (1, 2))


def test_batches_of_coordinates_multiply(rng: np.random.Generator) -> None:
    whole = rng.random((3, 4, 5)).astype(np.float32) * (rng.random((3, 4, 5)) < 0.4)
    whole, y = whole.astype(np.float32), rng.random((3, 5, 2), np.float32)
    x = flow.tensor(whole).to_sparse()
    assert np.allclose(flow.bmm(x, flow.tensor(y)).numpy(), whole @ y, rtol=1e-5, atol=1e-6)
    assert x.sum(0).shape == (4, 5)


def test_the_shape_may_be_too_large_to_be_dense() -> None:
    x = flow.sparse_coo_tensor([[5, 999_999], [7, 1]], [1.0, 2.0], (1_000_000, 1_000_000))
    assert flow.sparse.sum(x).item() == 3
    assert (x * 2).coalesce().values().tolist() == [2, 4]
    assert (x @ flow.ones(1_000_000)).sum().item() == 3

"""The other modules that PyTorch's programs import: true answers, clear errors."""

import importlib
import sys
import types
import zlib
from typing import Any, ClassVar

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, testing


def test_what_backends_answer() -> None:
    b = flow.backends
    off = (b.cudnn, b.mkl, b.mkldnn, b.mps, b.nnpack, b.openmp, b.opt_einsum)
    assert not any(module.is_available() for module in off)
    assert b.cudnn.version() is None
    assert b.cuda.is_built()
    assert b.cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


def test_switches_that_change_nothing_are_kept() -> None:
    cudnn = importlib.import_module("flowvm.backends.cudnn")
    assert cudnn is flow.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True
    assert flow.backends.cudnn.benchmark is True
    cudnn.benchmark = before
    with pytest.raises(AttributeError, match="has no 'benchmrk'; there are"):
        cudnn.benchmrk = True
    with flow.backends.mkldnn.flags(enabled=True):
        assert flow.backends.mkldnn.enabled
    assert not flow.backends.mkldnn.enabled
    with flow.backends.cuda.sdp_kernel(enable_flash=False):
        assert not flow.backends.cuda.flash_sdp_enabled()
    assert flow.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_devices_that_are_not_there(name: str) -> None:
    module = getattr(flow, name)
    assert not module.is_available()
    assert module.device_count() == 0
    with pytest.raises(RuntimeError, match=f"no '{name}' devices"):
        module.synchronize()


def test_one_process_is_a_world() -> None:
    dist = flow.distributed
    assert dist.is_available() == dist.is_mpi_available()
    if dist.is_initialized():  # another test's, in this process
        dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="there is no process group"):
        dist.get_rank()
    dist.init_process_group()
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        x = flow.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [1, 1]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: flow.sparse.solve, "scipy.sparse.linalg"),
        (lambda: flow.sparse.to_sparse_semi_structured, "2:4 sparsity"),
        (lambda: flow.complex32, "complex64 and complex128"),
        (lambda: flow.utils.cpp_extension.load, "no C.. extensions"),
        (lambda: flow.quantization, "no quantized kernels"),
        (lambda: flow.nn.COCOReader, "a Dataset of yours"),
        (lambda: flow.one_embedding, "nn.Embedding"),
        (lambda: flow.remat, "flow.utils.checkpoint"),
        (lambda: flow.boxing, "to_global"),
    ],
)
def test_what_is_absent_says_what_there_is(ask: Any, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        ask()


def test_nothing_is_downloaded(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="runs no code of a repository"):
        flow.hub.load("pytorch/vision", "resnet18")
    before = flow.hub.get_dir()
    flow.hub.set_dir(tmp_path)
    assert flow.hub.get_dir() == str(tmp_path)
    flow.hub.set_dir(before)


def test_versions_compare_as_versions() -> None:
    version = flow.version.Version("1.10.2+cpu")
    assert version > "1.9"
    assert version >= (1, 10)
    assert version < "1.10.3"
    assert flow.version.Version("2.0rc1") < "2.0"
    assert flow.__version__ == flow.version.__version__
    assert flow.version.cuda is None


def test_compiler_says_whether_something_is_captured() -> None:
    calls: list[bool] = []

    @flow.compile
    def double(x: flow.Tensor) -> flow.Tensor:
        calls.append(flow.compiler.is_compiling() and flow.jit.is_tracing())
        return x * 2

    assert double(flow.ones(2)).tolist() == [2.0, 2.0]
    assert True in calls
    assert not flow.compiler.is_compiling()
    f = flow.compiler.disable(lambda: 3)
    assert f() == 3


def test_jit_is_the_program_itself() -> None:
    class Net(nn.Module):
        @flow.jit.export
        def twice(self, x: flow.Tensor) -> flow.Tensor:
            return x * 2

        @flow.jit.ignore(drop=True)
        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return self.twice(x) if x.shape[0] > 1 else x

    net = Net()
    assert flow.jit.script(net) is net
    traced = flow.jit.trace(net, flow.ones(2))
    assert traced(flow.ones(2)).tolist() == [2.0, 2.0]
    assert traced(flow.ones(1)).tolist() == [1.0]  # another shape: captured anew
    assert flow.jit.isinstance([1], list[int])
    with pytest.raises(ValueError, match="no file of code"):
        flow.jit.save(net, "x.pt")


def test_random_numbers_of_a_fork_are_not_missed() -> None:
    flow.manual_seed(3)
    first = flow.rand(3).tolist()
    flow.manual_seed(3)
    with flow.random.fork_rng():
        flow.manual_seed(9)
        flow.rand(5)
    assert flow.rand(3).tolist() == first


def ends_well(i: int, limit: int) -> None:
    assert float(flow.ones(3).sum()) == 3.0
    if i >= limit:
        raise SystemExit(3)


def test_processes() -> None:
    mp = flow.multiprocessing
    assert mp.Queue
    assert mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    mp.start_processes(ends_well, (9,), nprocs=2, start_method="fork")
    with pytest.raises(RuntimeError, match="process 1 of spawn ended with exit code 3"):
        mp.start_processes(ends_well, (1,), nprocs=2, start_method="fork")


# --- testing --------------------------------------------------------------------------------------


def test_close_is_close() -> None:
    testing.assert_close(flow.ones(3), flow.ones(3) + 1e-7)
    testing.assert_close({"a": [flow.ones(2), 1.0]}, {"a": [flow.ones(2), 1.0 + 1e-9]})
    testing.assert_close(flow.tensor(float("nan")), flow.tensor(float("nan")), equal_nan=True)
    testing.assert_close(np.ones(2), np.ones(2))
    testing.assert_close(flow.ones(2), flow.ones(2).double(), check_dtype=False)
    testing.assert_allclose([1.0, 2.0], flow.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("actual", "expected", "options", "message"),
    [
        ([1.0, 2.0], [1.0, 2.5], {}, r"Mismatched elements: 1 / 2 \(50.0%\)\nGreatest absolute "
         r"difference: 0.5 at index \(1,\) \(up to 1e-05 allowed\)\nGreatest relative"),
        ([1, 2], [1, 3], {}, r"Tensor-likes are not equal!"),
        ([1.0], [[1.0]], {}, r"'shape' do not match: \(1,\) != \(1, 1\)"),
        ([1.0], [1], {}, "'dtype' do not match: flow.float32 != flow.int64"),
        ([1.0], [2.0], {"msg": "wrong"}, "^wrong$"),
        ([1.0], [2.0], {"msg": lambda m: "Look: " + m}, "Look: Tensor-likes"),
        ([float("nan")], [float("nan")], {}, "not close"),
    ],
)  # fmt: skip
def test_what_differs_is_said(actual: Any, expected: Any, options: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.assert_close(flow.tensor(actual), flow.tensor(expected), **options)


def test_other_things_that_differ() -> None:
    with pytest.raises(AssertionError, match=r"Scalars are not close!\n\nExpected 2.0 but got 1.0"):
        testing.assert_close(1.0, 2.0)
    with pytest.raises(AssertionError, match=r"occurred for item \['a'\]\[1\]"):
        testing.assert_close({"a": [1.0, 2.0]}, {"a": [1.0, 3.0]})
    with pytest.raises(AssertionError, match="The length of the sequences mismatch: 1 != 2"):
        testing.assert_close([1], [1, 2])
    with pytest.raises(TypeError, match="No comparison pair"):
        testing.assert_close(flow.ones(1), 1.0)
    with pytest.raises(ValueError, match="both be specified"):
        testing.assert_close(1.0, 1.0, rtol=1.0)


def test_like_torchs_message() -> None:
    torch = pytest.importorskip("torch")
    a, b = [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.5], [3.0, 7.0]]
    with pytest.raises(AssertionError) as theirs:
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))
    with pytest.raises(AssertionError) as ours:
        testing.assert_close(flow.tensor(a), flow.tensor(b))
    strip = str(theirs.value).strip().splitlines()
    assert [line.partition(":")[0] for line in str(ours.value).splitlines()] == [
        line.partition(":")[0] for line in strip
    ]


def test_tensors_to_try_with() -> None:
    x = testing.make_tensor(3, 4, dtype=flow.float32, low=1, high=2, requires_grad=True)
    assert tuple(x.shape) == (3, 4)
    assert x.requires_grad
    assert bool(((x >= 1) & (x < 2)).all())
    x = testing.make_tensor((3, 4), dtype=flow.int64, noncontiguous=True)
    assert not x.is_contiguous()
    x = testing.make_tensor(100, dtype=flow.uint8, low=0, high=2, exclude_zero=True)
    assert x.tolist() == [1] * 100


# --- tensorboard ----------------------------------------------------------------------------------


class FakeWriter:
    """A writer like tensorboardX's that notes its calls."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.calls = log_dir, []

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))

    def close(self) -> None:
        self.calls.append("closed")


def test_tensors_are_written_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("tensorboardX")
    package.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    with flow.utils.tensorboard.SummaryWriter("runs") as writer:
        writer.add_scalar("loss", flow.tensor(0.5), global_step=3)
        calls = writer.calls
    assert writer.log_dir == "runs"
    assert calls == [(("loss", 0.5), {"global_step": 3}), "closed"]


def test_a_graph_is_drawn_in_the_boxes_of_its_modules(tmp_path: Any) -> None:
    pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    graphs = pytest.importorskip("tensorboardX.proto.graph_pb2")
    nn = flow.nn
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    with flow.utils.tensorboard.SummaryWriter(tmp_path) as writer:
        writer.add_graph(model, flow.ones(5, 4))
        with pytest.raises(flow.errors.ArgumentTypeError, match="add_graph takes a module"):
            writer.add_graph(3, flow.ones(5, 4))
    (path,) = tmp_path.glob("events*")
    data, graph = path.read_bytes(), None
    while data:  # length, its checksum, the message, its checksum
        size = int.from_bytes(data[:8], "little")
        event = events.Event.FromString(data[12 : 12 + size])
        graph, data = event.graph_def or graph, data[16 + size :]
    nodes = {node.name: node for node in graphs.GraphDef.FromString(graph).node}
    assert list(nodes) == [
        "input/input", "Sequential/0/weight", "Sequential/0/bias", "Sequential/0/linear_0",
        "Sequential/1/0/relu_1", "Sequential/1/1/weight", "Sequential/1/1/bias",
        "Sequential/1/1/linear_2", "output/0",
    ]  # fmt: skip
    assert nodes["Sequential/0/linear_0"].input == [*nodes][:3]
    assert nodes["output/0"].input == ["Sequential/1/1/linear_2"]
    (shape,) = nodes["Sequential/1/0/relu_1"].attr["_output_shapes"].list.shape
    assert [dim.size for dim in shape.dim] == [5, 3]


class FakeEventFile:
    """A writer of event files like tensorboard's that keeps its events."""

    files: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: str, *options: Any) -> None:
        self.events: list[Any] = []
        FakeEventFile.files[folder] = self

    def add_event(self, event: Any) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass

    close = flush


def test_events_are_written_by_tensorboard_where_that_is_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("event", "graph", "summary", "tensor", "tensor_shape", "types"):  # the same ones
        messages = pytest.importorskip(f"tensorboardX.proto.{name}_pb2")
        monkeypatch.setitem(sys.modules, f"tensorboard.compat.proto.{name}_pb2", messages)
    for name in ("tensorboard", "tensorboard.compat", "tensorboard.compat.proto"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    files = types.ModuleType("event_file_writer")
    files.EventFileWriter = FakeEventFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", files)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr(FakeEventFile, "files", {})
    values = np.array([-2.0, 0.5, 0.5, 3.0])
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with flow.utils.tensorboard.SummaryWriter("runs/a") as writer:
        writer.add_scalar("loss", flow.tensor(0.5), 3)
        writer.add_scalars("lr", {"a": 1.0, "b": flow.tensor(2)}, global_step=4, walltime=9.0)
        writer.add_histogram("h", flow.tensor(values))
        writer.add_image("i", flow.tensor(image), dataformats="HWC")
        writer.add_text("t", "words")
        writer.add_graph(flow.nn.ReLU(), flow.ones(3))
        with pytest.raises(ValueError, match="add_video needs tensorboardX"):
            writer.add_video("v", flow.ones(3))
        with pytest.raises(ValueError, match="'CH' does not name"):
            writer.add_image("i", flow.ones(3, 3), dataformats="CH")
    own, one, two = (FakeEventFile.files[f"runs/a/{run}"].events for run in ("", "lr_a", "lr_b"))
    assert (one[0].wall_time, one[0].step, one[0].summary.value[0].simple_value) == (9.0, 4, 1.0)
    assert two[0].summary.value[0].tag == "lr"
    loss, histogram, picture, words = (event.summary.value[0] for event in own[:4])
    assert (loss.tag, loss.simple_value, own[0].step) == ("loss", 0.5, 3)
    text = histogram.histo
    assert [text.min, text.max, text.num, text.sum] == [-2.0, 3.0, 4.0, 2.0]
    assert text.sum_squares == 13.5
    assert sum(text.bucket) == 4
    ends = np.array(text.bucket_limit)
    assert [int(n) for n in text.bucket if n] == [1, 2, 1]
    assert ends[0] < -2.0
    assert ends[-1] >= 3.0
    assert (picture.image.height, picture.image.width, picture.image.colorspace) == (2, 3, 3)
    rows = zlib.decompress(picture.image.encoded_image_string[41:-16])
    assert rows == b"\0" + bytes(range(9)) + b"\0" + bytes(range(9, 18))
    assert words.tensor.string_val == [b"words"]
    graphs = sys.modules["tensorboard.compat.proto.graph_pb2"]
    nodes = graphs.GraphDef.FromString(own[4].graph_def).node  # type: ignore[attr-defined]
    assert [node.name for node in nodes] == ["input/input", "ReLU/relu_0", "output/0"]
    named = flow.utils.tensorboard.SummaryWriter(comment="_x").logdir
    assert named.startswith("runs")
    assert named.endswith("_x")


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    files = "tensorboard.summary.writer.event_file_writer"
    for name in ("tensorboardX", "tensorboard", files):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        flow.utils.tensorboard.SummaryWriter()


def test_checks_of_programs():
    for name, kind in (
        ("_check", RuntimeError),
        ("_check_value", ValueError),
        ("_check_index", IndexError),
        ("_check_type", TypeError),
        ("_check_not_implemented", NotImplementedError),
    ):
        check = getattr(flow, name)
        check(True, lambda: pytest.fail("asked for what need not be said"))
        with pytest.raises(kind, match="too many"):
            check(False, lambda: "too many")
        with pytest.raises(kind, match="was to be true"):
            check(False)
    with pytest.raises(TypeError, match="must be a bool"):
        flow._check(1)
    with pytest.raises(TypeError, match="must be a callable"):
        flow._check(False, "text")
    with pytest.raises(AssertionError, match="no"):
        flow._assert(False, "no")

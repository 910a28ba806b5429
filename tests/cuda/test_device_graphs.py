"""Graphs on a device: captured as CUDA graphs, launched with other inputs, updated and given up."""

import gc

import numpy as np
import pytest

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.errors import CaptureError, OutOfRangeError
from flowvm.graph.plan import device_graph
from flowvm.ops.declare.cuda import live_numbers, lowering, steps
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.updates.cuda import multi_tensor
from flowvm.vm.machine.device_words import GRAPH
from flowvm.vm.machine.words import CTL
from flowvm.vm.workers.device_graph import PATIENCE


class Step(flow.nn.Graph):
    """A training step; `schedule` changes the learning rate at each."""

    def __init__(self, place, optimizer=flow.optim.SGD, **options):
        super().__init__()
        flow.manual_seed(0)
        layers = flow.nn.Linear(5, 8), flow.nn.ReLU(), flow.nn.Linear(8, 3)
        self.model = flow.nn.Sequential(*layers).to(place)
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.add_optimizer(self.optimizer)

    def build(self, x, y):
        loss = flow.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def batches(rng, place, count=8):
    return [
        (
            flow.tensor(rng.standard_normal((4, 5)).astype(np.float32), device=place),
            flow.tensor(rng.integers(0, 3, 4), device=place),
        )
        for _ in range(count)
    ]


def test_training_is_the_same_as_on_the_cpu(device, seed):
    def losses(place):
        step = Step(place, lr=0.1, momentum=0.9)
        curve = [step(*b).item() for b in batches(np.random.default_rng(seed), place)]
        return curve, step

    (curve, step), (expected, _) = losses(device), losses("cpu")
    np.testing.assert_allclose(curve, expected, rtol=1e-5)
    assert step.plan.device_graph.text == "a CUDA graph, launched 6 times"  # of the second plan
    assert "a CUDA graph" in step.explain()


def test_arguments_that_are_written_are_the_callers(device):
    def step(x, y):
        result = x.add_(1) * 2 + y
        y.mul_(2)
        return result

    graph, columns = flow.compile(step), []
    for place, call in (("cpu", step), (device, graph)):
        x, y = flow.arange(4.0).to(place), flow.ones(4).to(place)
        columns.append([])
        for turn in range(8):
            x = flow.zeros(4).to(place) if turn == 5 else x  # other memory
            columns[-1] += [call(x, y).tolist(), x.tolist(), y.tolist()]
    assert columns[0] == columns[1]
    assert "a CUDA graph" in graph.plan.device_graph.text


def test_outputs_of_launches_in_flight_are_apart(device):
    @flow.compile
    def double(x):
        return x * 2 + 1

    results = [double(flow.full((3,), float(k), device=device)) for k in range(6)]
    assert [f.tolist() for f in results] == [[2.0 * k + 1] * 3 for k in range(6)]


def trained(place, batch, graph, optimizer, **options):
    """Losses and parameters of a model with dropout, whose learning rate changes at each step."""
    flow.manual_seed(1)
    layers = flow.nn.Linear(5, 8), flow.nn.Tanh(), flow.nn.Dropout(0.4), flow.nn.Linear(8, 3)
    model = flow.nn.Sequential(*layers).to(place)
    groups = [{"params": [*layers[0].parameters()]}, {"params": [*layers[3].parameters()]}]
    groups[1]["lr"] = 0.02
    optim = optimizer(groups, **options)
    schedule = flow.optim.lr_scheduler.ExponentialLR(optim, 0.9)

    def loss_of(x, y):
        loss = flow.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    class Graph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.config.disable("fusion", "epilogues")  # which may change a last place
            self.add_optimizer(optim)

        def build(self, x, y):
            return loss_of(x, y)

    step = Graph() if graph else loss_of
    losses = []
    for x, y in batch:
        losses.append(step(x, y).item())
        if not graph:
            optim.step()
            optim.zero_grad()
        schedule.step()
    return losses, [p.detach().cpu().numpy() for p in model.parameters()], step


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(flow.optim.AdamW, {"lr": 0.05}), (flow.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_numbers_that_always_change_are_read_from_memory(device, seed, optimizer, options):
    """Bit for bit as eager code on the device, and always the same graph."""
    batch = batches(np.random.default_rng(seed), device, 5)
    expected = trained(device, batch, False, optimizer, **options)
    losses, parameters, step = trained(device, batch, True, optimizer, **options)
    assert losses == expected[0]
    for parameter, right in zip(parameters, expected[1], strict=True):
        assert np.array_equal(parameter, right)
    assert step.plan.device_graph.text == "a CUDA graph, launched 3 times"  # of the second plan
    updates = [t for t in step.plan.tasks if t.node.phase == "optimizer"]
    assert len(updates) == 1  # of four parameters in two groups
    assert "kernels of their own" in step.explain()


def test_numbers_are_drawn_for_each_micro_batch(device):
    """Each repetition reads numbers of its own; sums of integers have no rounding."""
    results = []
    for place in (device, "cpu"):
        flow.manual_seed(5)
        weight = flow.nn.Parameter(flow.ones(4, device=place))

        class Graph(flow.nn.Graph):
            def __init__(self):
                super().__init__()
                self.weight = weight  # noqa: B023
                self.add_optimizer(flow.optim.SGD([weight], lr=1.0))  # noqa: B023
                self.config.set_gradient_accumulation_steps(2)

            def build(self, x):
                loss = (flow.nn.functional.dropout(x, 0.5) * self.weight).sum()
                loss.backward()
                return loss

        graph = Graph()
        x = flow.arange(16, device=place).float().reshape(4, 4)
        results.append([graph(x).tolist() for _ in range(4)] + [weight.tolist()])
    assert results[0] == results[1]
    assert len({str(losses) for losses in results[0][:4]}) == 4


def test_a_scaler_follows_to_the_device_and_skips_steps(device, rng):
    """The value by which a scaler decides ends a segment; each segment is a graph of its own."""
    xs = rng.standard_normal((6, 4, 5)).astype(np.float32)
    xs[3, 0, 0] = np.inf  # a step that is skipped
    results = []
    for place in (device, "cpu"):
        step = Step(place, lr=0.1)
        step.set_grad_scaler(flow.amp.GradScaler(init_scale=8.0, growth_interval=2))
        y = flow.tensor([0, 1, 2, 0], device=place)
        losses = [step(flow.tensor(x, device=place), y).item() for x in xs]
        results.append([*losses, step._scaler.get_scale(), *step.model[0].bias.tolist()])
        if place is device:
            assert step.explain().count("a CUDA graph, launched") == 2
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)
    assert np.isfinite(results[0][-8:]).all()


def test_addresses_that_differ_update_the_graph_and_in_the_end_give_it_up(device):
    weight = flow.full((3,), 2.0, device=device)

    @flow.compile
    def scaled(x, y):
        return x * weight + y

    def call(k):
        return scaled(flow.full((3,), float(k), device=device), flow.ones(3, device=device))

    def elsewhere():  # as far as the graph knows: it was captured with other addresses
        flow.vm.sync()
        graph.words[len(graph.words) - len(tail)] ^= 256

    assert [call(k)[0].item() for k in range(3)] == [1.0, 3.0, 5.0]
    graph = scaled.plan.device_graph
    operands = int(graph.words[GRAPH.OPERANDS])
    tail = graph.words[GRAPH.LISTS + 2 * operands :]
    for k in range(PATIENCE + 1):
        assert graph.text.startswith("a CUDA graph")
        elsewhere()
        assert call(k).tolist() == [2.0 * k + 1] * 3
    assert "no CUDA graph: its variables' addresses differ at each launch" in scaled.explain()
    assert call(7).tolist() == [15.0] * 3


def test_large_inputs_are_not_copied(device, monkeypatch):
    """Then tasks go one by one, with numbers and lines like a graph's."""
    monkeypatch.setattr(device_graph, "MOST_COPIED", 8)
    results = []
    for place in (device, "cpu"):
        flow.manual_seed(2)

        @flow.compile
        def dropped(x, index):
            return flow.nn.functional.dropout(x, 0.5)[index]

        x = flow.arange(8, device=place).float() + 1
        values = [dropped(x, flow.tensor([k], device=place)) for k in (0, 1, 8, 7)]
        results.append([values[k].tolist() for k in (0, 1, 3)])
        with pytest.raises(OutOfRangeError, match="index 8 is out of bounds"):
            values[2].numpy()
        if place is device:
            assert "inputs and outputs are more than" in dropped.explain()
    assert results[0] == results[1]


def test_what_a_graphs_kernel_finds_is_that_launchs(device):
    @flow.compile
    def pick(table, index):
        return table[index] + 1

    table = flow.arange(12, device=device).float().reshape(4, 3)
    rows = [pick(table, flow.tensor([k], device=device)) for k in (0, 1, 9, 2, 3)]
    for k in (0, 1, 3, 4):
        row = k if k < 2 else k - 1
        assert rows[k].tolist() == [[3.0 * row + 1 + i for i in range(3)]]
    with pytest.raises(OutOfRangeError, match="index 9 is out of bounds"):
        rows[2].numpy()


def test_a_failure_is_that_of_its_task_and_poisons_what_came_of_it(device):
    table = flow.arange(6, device=device).float().reshape(3, 2)
    total, count = flow.zeros(2, device=device), flow.zeros(1, device=device)

    @flow.compile
    def step(first, second):
        a = table[first].sum(0)
        b = table[second].sum(0)
        total.add_(a * b)
        count.add_(1)
        return a, b

    def index(*numbers):
        return flow.tensor(numbers, device=device)

    for k in range(3):
        assert step(index(k), index(1, 1))[0].tolist() == [2.0 * k, 2.0 * k + 1]
    assert step.plan.device_graph.text.startswith("a CUDA graph")
    a, b = step(index(0), index(1, 5))
    for tensor in (a, b, total):
        with pytest.raises(OutOfRangeError, match="index 5 is out of bounds") as failed:
            tensor.numpy()
        text = "".join(failed.value.__notes__)
        assert "b = table[second].sum(0)" in text
        assert "index_select (node " in text
    assert count.tolist() == [4.0]  # which has nothing to do with it


def test_streams_in_build_are_branches(device, seed):
    streams = [flow.cuda.Stream() for _ in range(2)]
    weight = flow.ones(4, 4, device=device)

    def work(x, streams):
        a = x.relu()
        with flow.cuda.stream(streams[0]):
            b = (a @ weight).tanh()
        with flow.cuda.stream(streams[1]):
            c = (a * 2).sum(1)
        b = b + a.sin()
        with flow.cuda.stream(streams[1]):
            d = (b - c) @ weight
        weight.add_(0.25)  # behind both products
        return b.sum(0) + c, d * weight

    class Branches(flow.nn.Graph):
        def build(self, x):
            return work(x, streams)

    graph = Branches()
    graph.config.disable("fusion", "epilogues")
    generator = np.random.default_rng(seed)
    xs = [flow.tensor(generator.standard_normal((4, 4)), device=device) for _ in range(5)]
    xs = [x.float() for x in xs]
    results = [graph(x) for x in xs]
    flow.vm.sync()
    weight.fill_(1)
    for x, outputs in zip(xs, results, strict=True):
        for mine, right in zip(outputs, work(x, [None, None]), strict=True):
            assert np.array_equal(mine.numpy(), right.numpy())
    launched = graph.plan.device_graph
    assert launched.branches >= 4
    assert launched.text == f"a CUDA graph of {launched.branches} branches, launched 4 times"
    assert f"{launched.branches} branches" in graph.plan.dump()


def test_a_bias_goes_to_the_nodes_behind_its_layer(device, rng):
    """Sums of small integers have no rounding."""
    x = rng.integers(-3, 4, (5, 4)).astype(np.float32)
    weight, bias = rng.integers(-3, 4, (3, 4)), rng.integers(-3, 4, 3)
    expected = np.abs(x @ weight.T + bias)

    def layer(x, weight, bias):
        return flow.nn.functional.linear(x, weight, bias).abs()

    inputs = [flow.tensor(a.astype(np.float32), device=device) for a in (x, weight, bias)]
    for without in ((), ("epilogues",)):

        class Layer(flow.nn.Graph):
            def build(self, *tensors):
                return layer(*tensors)

        graph = Layer()
        graph.config.disable(*without)
        assert graph(*inputs).tolist() == expected.tolist()
        names = [task.node.operator.name for task in graph.plan.tasks]
        assert names == (["linear", "abs"] if without else ["_matmul_nt", "fused[add,abs]"])


F = flow.nn.functional


def attention(x, mask, keep, weight):
    return F.softmax(flow.where(keep, x, -100.0) * 0.5 + mask, -1)


def attention_behind(x, mask, keep, weight):
    return F.log_softmax(x - mask, -1) * weight + x.sum(-1, True), keep


def residual(x, mask, keep, weight):
    h = x + mask
    return F.layer_norm(h, (12,), weight, weight).tanh() * weight, h


def gradient(x, mask, keep, weight):
    x = (x * 0.25).detach().requires_grad_()
    y = F.softmax(x, -1)
    (g,) = flow.autograd.grad((y * mask).sum(), x)
    return g * 0.5 + weight


ROWS = {
    attention: ["fused[where,mul,add,softmax]"],
    attention_behind: ["sum", "fused[sub,log_softmax,mul,add]"],
    residual: ["fused[add,normalize,tanh,mul]"],
    gradient: ["fused[mul,softmax]", "fused[mul,softmax_backward,mul,add]"],
}


@pytest.mark.parametrize("function", ROWS)
def test_rows_that_are_held_read_and_write_through_programs(device, rng, ptx_of, function):
    shapes = (2, 3, 6, 12), (1, 1, 6, 12), (2, 1, 1, 12), (12,)
    x, mask, keep, weight = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    inputs = [flow.tensor(a, device=device) for a in (x, mask, keep > 0, weight)]

    class Rows(flow.nn.Graph):
        def build(self, *tensors):
            return function(*tensors)

    graph = Rows()
    for _ in range(3):
        results = graph(*inputs)
    expected = function(*inputs)
    expected, results = (v if isinstance(v, tuple) else (v,) for v in (expected, results))
    for mine, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), right.numpy(), rtol=1e-5, atol=1e-5)
    nodes = [task.node for task in graph.plan.tasks]
    assert [node.operator.name for node in nodes] == ROWS[function]
    (step,) = lowering.launch_of(
        nodes[-1].operator, tuple(o.meta for o in nodes[-1].inputs), nodes[-1].attrs
    ).steps
    (text,) = ptx_of(step.kernel, compilation.signature_of(step), ((7, 0),))
    assert "ld.local" not in text


def test_on_another_stream_it_goes_task_by_task(device):
    @flow.compile
    def add(x):
        return x + 1

    with flow.cuda.stream(flow.cuda.Stream()):
        for k in range(3):
            assert add(flow.full((2,), float(k), device=device)).tolist() == [k + 1.0] * 2
    assert "task by task: a CUDA graph goes by the order of" in add.explain()


def test_a_graph_of_two_devices_is_refused(device):
    @flow.compile
    def both(x):
        return x.cpu() + 1

    with pytest.raises(CaptureError, match=r"computes on one device.*cpu, cuda:0"):
        both(flow.ones(3, device=device))
    assert flow.ones(2, device=device).sum().item() == 2


def test_dropped_graphs_give_their_memory_back(device):
    from flowvm.cuda.driver.streams import streams
    from flowvm.vm.engine.engine import engine

    def use():
        graph = flow.compile(lambda x: (x @ x).relu() + x)
        for _ in range(3):
            assert graph(flow.ones(16, 16, device=device)).sum().item() == 17 * 256

    def settle():
        gc.collect()
        flow.vm.sync()
        flow.compile(lambda x: x + 1)(flow.ones(1, device=device))  # lets go of what is dropped
        gc.collect()
        engine.storages.release_dead()
        engine.waits.wait_idle()

    use()
    settle()
    before = int(streams(0).counters[CTL.LIVE_BYTES])
    for _ in range(3):
        use()
    settle()
    assert int(streams(0).counters[CTL.LIVE_BYTES]) <= before + 4096


def test_the_kernels_compile(ptx_of, monkeypatch):
    """Compile the kernels that graphs have besides the kernels of their nodes."""

    def part(name, count):
        step = operator_of(getattr(flow.ops, name))
        return lowering.launch_of(step, (flow.ones(8)._meta,) * count, ()).steps[0].part

    monkeypatch.setattr(compilation, "simulated", lambda: False)
    words, number = ("int64", 1, "C"), ("float64", 1, "C")
    adam = *["int64"] * 3, *["float64"] * 5, "int64"
    each = multi_tensor.each_kernel(part("adam_step_", 4), ("float32",) * 4, len(adam), 4096)
    sgd = steps.whole(part("sgd_step_", 2), 5)
    vector = ("float32", 1, "C")
    for kernel, signature in (
        (each, (words, "int64", *adam)),
        (
            live_numbers.by_address(sgd, (False,) * 3 + (True,) * 2),
            (vector, vector, "int64", number, number),
        ),
        (live_numbers.put_kernel(8), (words, *["int64"] * 8)),
        (live_numbers._collect, (words, words, "int64")),
    ):
        (text,) = ptx_of(kernel, signature, ((7, 0),))
        assert ".entry" in text
        assert "ld.local" not in text

"""An exception at any moment leaves every switch as it was.

Every context manager of flowvm and the path of a call are run with an exception at each boundary
between two bytecodes (`tests.guards.boundaries`); afterwards all that may be switched is as
before, and the VM computes.
"""

import ast
import gc
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, overrides
from flowvm.autograd import node_listeners
from flowvm.autograd.backward import scaled, seeded
from flowvm.autograd.engine import anomaly
from flowvm.compiler import progress, shortcuts
from flowvm.config import config
from flowvm.distributed.device_mesh import DeviceMesh
from flowvm.distributed.fsdp.wrap import enable_wrap
from flowvm.eager import modes
from flowvm.eager.autocast import autocasting, autocasting_apart
from flowvm.func import transforms
from flowvm.guards import forks
from flowvm.guards.collection import Uncollected
from flowvm.guards.regions import Mode, Region
from flowvm.interop import printing
from flowvm.nn import module_calls
from flowvm.nn.graph import environment, steps
from flowvm.nn.utils import stateless
from flowvm.ops.declare.cpu import vector_code
from flowvm.profiler.front import profiles
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch import sampling
from flowvm.vm.watch.flight import EVERY
from tests.guards.boundaries import drive

checkpoints = sys.modules["flowvm.autograd.checkpoint"]  # the function has its name
PLACED = flow.placement("cpu", [0]).device(0)
MODES = [o for o in gc.get_objects() if isinstance(o, Mode)]
ROOT = Path(__file__).resolve().parents[3]


# --- what may be switched -------------------------------------------------------------------------


def state():
    """All that a switch may leave behind, by name."""
    state = {f"mode {n}": (mode.now(), bool(mode.inside)) for n, mode in enumerate(MODES)}
    state |= {f"config.{name}": value for name, value in config.as_dict().items()}
    return state | {
        "flags": [bool(hot[name]) for name in ("unrecorded", "departed", "autocast")],
        "nodes": (dict(node_listeners.askers), flow.eager.nodes.Node.__init__),
        "anomaly": anomaly.check,
        "calls": (dict(module_calls._askers), nn.Module.__call__),
        "watching": environment._local.modules,
        "checkpoint": list(checkpoints._local.listeners),
        "print": printing._options,
        "level": int(engine.words[CTL.LEVEL]),
        "sequential": set(engine.threads.vetoes),
        "spans": list(engine.flight.open),
        "gc": gc.isenabled(),
        "cudnn": flow.backends.cudnn.benchmark,
        "layer": LAYER.weight is LAYER.__dict__["_parameters"]["weight"] is WEIGHT,
        "progress": (progress._burst.listener, [*progress._burst.works]),
        "shortcuts": [o.__dict__.get(name) for o, name, _ in shortcuts._replacements()],
        "apart": list(vector_code._apart),
        "taken locks": list(held_locks()),
    }


LONG_S = 10.0  # for which somebody else may have a lock


def held_locks():
    """Locks that this thread has, or somebody for long."""
    for lock in list(forks._ranks):
        owned = getattr(lock, "_is_owned", None)  # of one that its owner may take again
        if (owned is not None and owned()) or not lock.acquire(timeout=LONG_S):
            yield lock
        else:
            lock.release()


def difference(before):
    """Return what differs from before, in words; other threads have a while to leave a region."""
    deadline = time.monotonic() + LONG_S
    while True:
        now = state()
        text = ", ".join(
            f"{name} is {now.get(name)}, was {before.get(name)}"
            for name in before | now
            if before.get(name) != now.get(name)
        )
        if not text or threading.active_count() == 1 or time.monotonic() > deadline:
            return text


ONES = flow.ones(3)
MESH = DeviceMesh("cpu", [0], _init_backend=False)  # other tests ask for no group
LAYER = nn.Linear(3, 1)
WEIGHT = LAYER.weight


def wrong_now(before):
    """Return the difference from before, in words, or the failure of the VM to compute."""
    if text := difference(before):
        return text
    words = engine.lending.words
    if words[0] != words[1:].sum():
        return f"{words[0]} loans are said to be there, and {words[1:].sum()} are"
    y = (ONES + 1).numpy()
    return "" if (y == 2).all() else f"1 + 1 is {y}"


def driven(start, **options):
    before = state()
    return drive(start, lambda: wrong_now(before), **options)


# --- context managers -----------------------------------------------------------------------------

STREAM = flow.Stream("boundaries")
LEAF = flow.ones(2, requires_grad=True)
KEPT = flow.no_grad()
ENABLED = flow.set_grad_enabled(True)

# what is entered: by the name of the class or function it is
MANAGERS = {
    "flowvm.func.forward_ad:dual_level": flow.func.forward_ad.dual_level,
    "flowvm.overrides:BaseTorchFunctionMode": overrides.BaseTorchFunctionMode,
    "flowvm.overrides:TorchFunctionMode": overrides.BaseTorchFunctionMode,
    "flowvm.overrides:DisableTorchFunctionSubclass": overrides.DisableTorchFunctionSubclass,
    "flowvm.overrides:DisableTorchFunction": overrides.DisableTorchFunction,
    "autograd.modes:no_grad": flow.no_grad,
    "autograd.modes:no_grad again": lambda: KEPT,
    "autograd.modes:enable_grad": flow.enable_grad,
    "autograd.modes:inference_mode": flow.inference_mode,
    "autograd.modes:set_grad_enabled": lambda: ENABLED,
    "autograd.anomaly:set_detect_anomaly": flow.autograd.detect_anomaly,
    "autograd.anomaly:detect_anomaly": flow.autograd.detect_anomaly,
    "autograd.backward:seeded": lambda: seeded(0.5),
    "autograd.backward:scaled": lambda: scaled(ONES),
    "autograd.hooks:RemovableHandle": lambda: LEAF.register_hook(print),
    "autograd.checkpoint:Listening": lambda: (
        checkpoints.Listener(lambda *_: None).listening(alone=True)
    ),
    "autograd.graph:saved_tensors_hooks": lambda: flow.autograd.graph.saved_tensors_hooks(
        lambda x: x, lambda x: x
    ),
    "autograd.graph:disable_saved_tensors_hooks": lambda: (
        flow.autograd.graph.disable_saved_tensors_hooks("not here")
    ),
    "flowvm.amp.autocast_mode:autocast": lambda: flow.autocast("cpu"),
    "flowvm.eager.autocast:autocasting": lambda: autocasting(flow.float16),
    "flowvm.eager.autocast:autocasting_apart": lambda: autocasting_apart(flow.float16),
    "flowvm.eager.modes:recording": lambda: modes.recording(False),
    "flowvm.eager.modes:pinned": lambda: modes.pinned(modes.user_line()),
    "flowvm.eager.modes:recording_to": lambda: modes.recording_to(None),
    "flowvm.meta.device:Device": lambda: flow.device("cpu"),
    "flowvm.meta.placements:PlacedDevice": lambda: PLACED,
    "flowvm.streams:stream": lambda: flow.stream(STREAM),
    "flowvm.nn.graph.steps:eager_step": steps.eager_step,
    "flowvm.nn.utils.stateless:_replaced": lambda: stateless._replaced(
        LAYER, {"weight": ONES}, False
    ),
    "flowvm.nn.utils.parametrize:cached": nn.utils.parametrize.cached,
    "flowvm.func.transforms:_inside": transforms._inside,
    "flowvm.nn.hooks:RemovableHandle": lambda: nn.ReLU().register_forward_hook(print),
    "flowvm.interop.printing:printoptions": lambda: flow.printoptions(precision=2),
    "flowvm.config:Config._for_a_block": lambda: config(tb="full", debug=0),
    "flowvm.profiler.front.profiles:profile": flow.profiler.profile,
    "flowvm.sparse:check_sparse_tensor_invariants": (
        lambda: flow.sparse.check_sparse_tensor_invariants()
    ),
    "flowvm.profiler.run.spans:span": lambda: flow.profiler.span("s"),
    "flowvm.distributed.device_mesh:DeviceMesh": lambda: MESH,
    "flowvm.distributed.fsdp.wrap:enable_wrap": lambda: enable_wrap(wrapper_cls=nn.Identity),
    "flowvm.vm.watch.trace:record": flow.vm.record,
    "flowvm.vm.watch.flight:Flight.at_least": lambda: engine.flight.at_least(2),
    "flowvm.vm.engine.sequential:Sequential.region": flow.vm.sequential,
    "flowvm.vm.engine.debugger:Stepping": lambda: flow.vm.step(on=lambda stop: None),
    "flowvm.random:fork_rng": flow.random.fork_rng,
    "flowvm.cuda.options:Setting": lambda: flow.backends.cudnn.flags(benchmark=True),
    "flowvm.guards.collection:Uncollected": Uncollected,
    "flowvm.compiler.progress:compiling": lambda: progress.compiling("k"),
    "flowvm.compiler.progress:making": lambda: progress.making("op"),
    "flowvm.compiler.progress:telling": lambda: progress.telling(print),
    "flowvm.compiler.shortcuts:shortcuts": shortcuts.shortcuts,
    "ops.declare.cpu.vector_code:functions_apart": vector_code.functions_apart,
}  # fmt: skip
SLOW = {  # more boundaries than there is time for, or threads that start and end: so many of them
    "flowvm.random:fork_rng": 60,
    "flowvm.cuda.options:Setting": 60,
    "flowvm.profiler.front.profiles:profile": 40,
    "flowvm.vm.watch.trace:record": 100,
    "flowvm.vm.watch.flight:Flight.at_least": 200,
    "flowvm.vm.engine.sequential:Sequential.region": 40,
    "flowvm.vm.engine.debugger:Stepping": 40,
}
# driven with what they are a part of, below
IN_A_CAPTURE = {
    "flowvm.nn.graph.gradients:SetAside", "flowvm.nn.graph.gradients:Gradients",
    "flowvm.nn.graph.environment:capture_environment",
    "flowvm.nn.graph.steps:Steps", "flowvm.nn.graph.steps:Turns",
    "flowvm.nn.graph.gradients:MicroBatches",
    "flowvm.nn.graph.explain:Status.shown", "graph.capture.capture:Capture.repeating",
    "graph.capture.capture:Capture.forgetting", "graph.capture.capture:capturing",
    "graph.capture.breaks:Breaks", "autograd.checkpoint:_Call._as_before",
    "flowvm.compiler.native:Lowering._compiling", "flowvm.compiler.cache:_opened",
}  # fmt: skip
ELSEWHERE = {
    "flowvm.compat.fake:FakeTensorMode": "a TorchFunctionMode",
    "flowvm.meta.batched_meta:BatchedDevice": "a Device, with the levels of a map",
    "flowvm.torch_names.mock_torch:_Switch": "what names mean in a whole process: tests/compat",
    "flowvm.compiler.cache:alone": "a thread or a process of its own, which nobody interrupts",
    "flowvm.compiler.record:phase": "likewise",
    "flowvm.compiler.record:phases": "likewise",
    "flowvm.compiler.shortcuts:_Context": "likewise; it changes nothing but an error",
    "flowvm.commands.warmup:progress": "a bar of rich's",
    "flowvm.commands.demo:progress_bar": "a bar of rich's",
    "flowvm.commands.demo:busy": "a line on the screen",
    "flowvm.profiler.front.live:serve": "a process of its own, ended by its end",
    "flowvm.profiler.front.top:_keys": "a terminal",
    "flowvm.profiler.front.live:live": "a thread of its own, which ends by itself",
    "flowvm.cuda.driver.driver:using": "for tests of CUDA",
    "flowvm.cuda.simulator.grid:_swapped": "the simulator, for tests",
    "flowvm.cuda.devices:device": "asks the driver; a region like Device",
    "flowvm.cuda.events:stream": "two regions",
    "flowvm.utils.tensorboard:SummaryWriter": "closes another package's file",
    "flowvm.fx.capture:_Examples.around": "two regions",
    "flowvm.fx.recorder:Tracing": "notes each of a thousand names before it changes it",
    "flowvm.utils.flop_counter:FlopCounterMode": "a flow.profiler.profile",
    "flowvm.compat.profiler:profile": "flow.profiler.profile, opened by start() and step() too",
    "flowvm.compat.profiler:record_function": "flow.profiler.span",
    "flowvm.compat.profiler:emit_nvtx": "refuses",
    "flowvm.distributed.fsdp.wrapper:FullyShardedDataParallel.no_sync": "of all ranks: an error "
    "on one ends the others",
    "flowvm.distributed.fsdp.wrapper:FullyShardedDataParallel.state_dict_type": "likewise",
    "flowvm.distributed.fsdp.wrapper:FullyShardedDataParallel.summon_full_params": "likewise",
    "flowvm.distributed.fsdp.states:whole_params": "likewise",
    "flowvm.distributed.tensor.experimental:context_parallel": "likewise",
    "flowvm.nn.parallel.joins:Join": "likewise",
    "flowvm.files.writer:writing": "tests/utils/test_writing.py",
    "flowvm.vm.engine.scheduling:Scheduling": "tests/lab/test_real.py",
    "flowvm.guards.regions:Region": "the base",
    "flowvm.guards.regions:AroundToo": "a base",
    "flowvm.guards.regions:reverting": "driven by those that are made of it",
}


def test_every_context_manager_is_driven():
    managers = set()
    for top in ("flowvm", "autograd", "graph", "ops"):
        for path in (ROOT / top).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            managers |= {f"{module}:{name}" for name in _managers(ast.parse(path.read_text()), "")}
    known = {name.split(" ")[0] for name in MANAGERS} | IN_A_CAPTURE | set(ELSEWHERE)
    assert managers <= known, "neither driven nor said to be driven elsewhere"
    for kind in _below(Region):
        module = kind.__module__.removeprefix("flowvm.")
        if module.startswith("tests."):  # another test's, in the same process
            continue
        names = {f"{module}:{kind.__name__}", f"flowvm.{module}:{kind.__name__}"}
        assert kind.__name__[0] == "_" or names & known, kind


def _below(kind):
    return {kind}.union(*map(_below, kind.__subclasses__()))


def _managers(tree, prefix):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            entered = any(getattr(n, "name", "") == "__enter__" for n in node.body)
            entered |= "Switched" in map(ast.unparse, node.bases)
            if entered and "Protocol" not in map(ast.unparse, node.bases):
                yield prefix + node.name
            yield from _managers(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and any(
            "contextmanager" in ast.unparse(d) for d in node.decorator_list
        ):
            yield prefix + node.name


@pytest.mark.parametrize("name", MANAGERS)
@pytest.mark.product(2)
def test_a_context_manager(name, seed, monkeypatch):
    make = MANAGERS[name]
    # what reads all of the process, in millions of steps
    monkeypatch.setattr(sampling.Sampling, "_find", lambda *_: None)
    monkeypatch.setattr(profiles, "held_of", lambda *_: [])

    def start():
        def use():
            with make():
                pass

        return use

    driven(start, most=SLOW.get(name), seed=seed)


@pytest.mark.parametrize(
    "name",
    ["autograd.modes:no_grad", "autograd.backward:seeded", "flowvm.eager.autocast:autocasting",
     "flowvm.nn.graph.steps:eager_step", "flowvm.guards.collection:Uncollected"],
)  # fmt: skip
def test_an_exception_that_is_kept_keeps_no_mode(name, seed):
    """As `sys.last_exc` is at a prompt, with the frames in which it came."""

    def start():
        def use():
            with MANAGERS[name]():
                pass

        return use

    driven(start, most=60, seed=seed, keep=True)


def test_a_frame_that_is_kept_keeps_no_mode():
    """A thread that looks at another one keeps frames that return meanwhile."""
    frames, before = [], state()

    def look(frame, event, arg):
        frames.append(frame)
        return look

    prior = sys.gettrace()
    sys.settrace(look)
    try:
        with flow.no_grad(), modes.recording(False), Uncollected(), config(tb="full"):
            pass
    finally:
        sys.settrace(prior)
    assert {"_prepared", "within", "__get__"} <= {frame.f_code.co_name for frame in frames}
    assert not (text := difference(before)), text


def test_the_boundaries_leave_no_exception_behind():
    """As one in front of the instructions of a handler would, which CPython does not cover."""

    def handle():
        try:
            raise KeyError
        except KeyError:
            pass

    assert drive(lambda: handle, lambda: sys.exc_info()[1]) > 5


def test_a_vm_that_comes_to_rest_takes_records_again(monkeypatch, seed):
    """Boundaries of what `Sequential.region` does behind its wait, which "sync" is."""
    monkeypatch.setattr(engine.waits, "wait_idle", lambda: True)

    def sequentially():
        with engine.sequential.region():
            pass

    def start():
        (ONES + 1).numpy()
        assert engine.threads.running
        return sequentially

    assert driven(start, most=250, seed=seed) == 250


# --- the path of a call ---------------------------------------------------------------------------


class Train:
    """A model, an optimizer and a batch; each step is as the one before."""

    def __init__(self):
        flow.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.adam = flow.optim.Adam(self.model.parameters(), lr=0.0)
        self.x = flow.ones(5, 3)

    def loss(self, x):
        return self.model(x).pow(2).mean()


class Step(nn.Graph):
    def __init__(self, train):
        super().__init__()
        self.train, self.model = train, train.model
        self.add_optimizer(train.adam)

    def build(self, x):
        loss = self.train.loss(x)
        loss.backward()
        return loss


def calls():
    """Functions that are called with an exception at each boundary; made of one another's parts."""
    train, x = Train(), flow.ones(4, 4)
    w = flow.ones(4, requires_grad=True)
    graph = flow.compile(lambda t: (t * 2 + 1).sum())
    step = Step(Train())
    for _ in range(3):
        graph(x)
        step(step.train.x)

    def forward_and_backward():
        train.loss(train.x).backward()

    def optimizer_step():
        train.adam.step()

    def under_modes():
        with flow.no_grad(), flow.stream(STREAM), flow.autocast("cpu"):
            train.model(train.x)

    def checkpointed():
        flow.utils.checkpoint.checkpoint(train.loss, train.x).backward()

    def captured():
        flow.compile(lambda t: (t * 3 - 1).relu().sum())(x)

    def captured_step():
        Step(step.train)(train.x)

    def many_die():
        parts = [x + 1 for _ in range(40)]
        del parts

    def lines_kept():
        engine.flight.lines_end -= EVERY
        engine.flight.note(int(engine.words[CTL.RECEIVED]))

    return (
        {
            "an op": lambda: x + 1,
            "an op with a number": lambda: x * 2.5,
            "an op that records": lambda: w * w,
            "in place": lambda: x.mul_(1.0),
            "a view": lambda: x[1:].t(),
            "many die": many_die,
            "lines are kept": lines_kept,
            "numpy": lambda: x.numpy(),
            "item": lambda: x.sum().item(),
            "sync": flow.vm.sync.__wrapped__,
            "backward": forward_and_backward,
            "an optimizer": optimizer_step,
            "modes": under_modes,
            "a checkpoint": checkpointed,
            "a replay": lambda: graph(x),
            "a step of a graph": lambda: step(step.train.x),
            "a capture": captured,
            "a capture of a step": captured_step,
        },
        train,
        step,
    )


# of those that pass more boundaries than there is time for; `tools.campaign.interrupts` has time
MOST = {
    "many die": 80, "sync": 200, "backward": 150, "an optimizer": 80, "modes": 150,
    "a checkpoint": 80, "a step of a graph": 80, "a capture": 25, "a capture of a step": 25,
}  # fmt: skip


@pytest.fixture(scope="module")
def called():
    return calls()


@pytest.mark.parametrize(
    "name",
    ["an op", "an op with a number", "an op that records", "in place", "a view", "many die",
     "lines are kept", "numpy", "item", "sync", "backward", "an optimizer", "modes",
     "a checkpoint", "a replay", "a step of a graph", "a capture", "a capture of a step"],
)  # fmt: skip
def test_the_path_of_a_call(called, name, seed):
    functions, train, step = called
    driven(lambda: functions[name], most=MOST.get(name), seed=seed)
    for trainer in (train, step.train):
        assert all(
            type(v) in (float, int, bool, tuple, list) or v is None
            for group in trainer.adam.param_groups
            for k, v in group.items()
            if k != "params"
        )
        assert np.isfinite(trainer.loss(trainer.x).item())
    assert step(step.train.x).item() == pytest.approx(step.train.loss(step.train.x).item())
    assert flow.compile(lambda t: t + 1)(ONES).tolist() == [2, 2, 2]

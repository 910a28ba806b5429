"""Autocast gives each op PyTorch's dtype; GradScaler scales, skips and adapts as PyTorch's."""

from __future__ import annotations

import copy
import importlib
import threading
import warnings

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.autocast import AMP
from flowvm.eager.interpreter import operators
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, DeviceError
from flowvm.ops.declare.registry import SAMPLES
from flowvm.vm.callers.hot import hot

nn, F = flow.nn, flow.nn.functional
half, single, double = flow.float16, flow.float32, flow.float64

# where flowvm's dtype is another one than PyTorch's, and why
OTHERWISE = {
    "complex": "there is no complex32",
    "polar": "there is no complex32",
    "view_as_complex": "there is no complex32",
    "nansum": "a sum, here",
    "nanmean": "a sum, here",
    "mvlgamma": "a sum, here",
    "trace": "a sum, here",
    "put": "one dtype; PyTorch looks at a mix of dtypes only where there are values",
    "index_reduce": "likewise",
    "nextafter": "not of float16",
    "vander": "powers by cumprod",
    "det": "computed in float32 and left there",
    "binary_cross_entropy": "PyTorch refuses it in a CUDA region; here it is a loss as others are",
    "adaptive_max_pool1d": "PyTorch's gives indices, too",
    "index_add": "the widest; PyTorch looks at a mix of dtypes only where there are values",
    "index_copy": "the widest, as in PyTorch's list for the CPU",
}


@pytest.fixture(autouse=True)
def no_region_left():
    yield
    assert not hot["autocast"]
    assert flow.eager.autocast.autocast_dtype() is None


def converted(value, make, dtypes):
    """A sample's arguments as tensors, its float arrays of the dtypes that come in turn."""
    if isinstance(value, (list, tuple)):
        return type(value)([converted(v, make, dtypes) for v in value])
    if isinstance(value, np.ndarray):
        return make(value.astype(next(dtypes)) if value.dtype.kind == "f" else value)
    return value


def dtypes_of(result):
    if isinstance(result, (list, tuple)):
        return [dtypes_of(r) for r in result]
    return str(result.dtype).split(".")[1] if hasattr(result, "dtype") else type(result)


def cycle(*names):
    while True:
        yield from names


@pytest.fixture(scope="module")
def as_pytorch():
    """Return a function of the dtypes that torch.autocast gives on CUDA tensors.

    Tensors have only shapes; the function returns None if PyTorch refuses the call.
    """
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode

    def find(name, sample, dtypes):
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
        if function is None:
            return None

        def make(array):
            dtype = getattr(torch, array.dtype.name)
            return torch.empty(array.shape, dtype=dtype, device="cuda")

        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        try:
            with fake(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                args = converted(sample.args, make, dtypes())
                return dtypes_of(function(*args, **converted(sample.kwargs, make, dtypes())))
        except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return None
        finally:
            torch.set_autocast_enabled("cuda", False)

    return find


@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.name)
@pytest.mark.product(4)
def test_every_op_has_pytorchs_dtype(known, as_pytorch, rng):
    if known.name in OTHERWISE:
        pytest.skip(OTHERWISE[known.name])
    for sample in list(known.generate(rng))[:2]:
        for names in (("float32",), ("float16",), ("float16", "float32")):
            expected = as_pytorch(known.name, sample, lambda n=names: cycle(*n))
            if expected is None:
                continue
            args = converted(sample.args, flow.from_numpy, cycle(*names))
            kwargs = converted(sample.kwargs, flow.from_numpy, cycle(*names))
            with flow.autocast(dtype=half):
                ours = known.function(*args, **kwargs)
            assert dtypes_of(ours) == expected, f"{names} {sample}"


def test_every_rule_is_known():
    rules = {operator.rules.amp for operator in operators}
    assert rules == {"", *AMP}


def test_a_rule_of_no_kind_is_refused():
    with pytest.raises(ArgumentError, match="amp is one of half, full, widest, not 'low'"):
        flow.elementwise("odd_amp", "x + 1", amp="low")


def test_an_op_of_ones_own_has_no_rule_by_its_name(rng):
    exp = flow.elementwise("exp", "x + 1", doc="x + 1.")
    x = flow.tensor(rng.standard_normal(3), dtype=half)
    with flow.autocast(dtype=half):
        assert exp(x).dtype is half
        assert flow.exp(x).dtype is single


# --- regions ------------------------------------------------------------------------------------


def product(x=None):
    x = flow.ones(2, 2) if x is None else x
    return (x @ x).dtype


def test_regions_nest_switch_off_and_end_with_errors():
    assert product() is single
    with flow.autocast(dtype=half):
        assert product() is half
        with flow.autocast(enabled=False):
            assert product() is single
            with flow.autocast("cpu", half):
                assert product() is half
            assert product() is single
        assert product() is half
        with pytest.raises(KeyError), flow.autocast(enabled=False):
            raise KeyError
        assert product() is half
    assert product() is single


def test_the_default_is_pytorchs_of_the_device():
    with flow.autocast("cpu"):
        assert product() is flow.bfloat16
    assert flow.autocast("cuda", enabled=False).dtype is half


def test_one_region_object_may_be_entered_again():
    region = flow.autocast(dtype=half)
    for _ in range(2):
        with region, region:
            assert product() is half


def test_a_function_may_be_decorated():
    @flow.autocast(dtype=half)
    def inside():
        """Text to be kept."""
        return product()

    assert inside() is half
    assert product() is single
    assert inside.__doc__ == "Text to be kept."
    assert inside.__name__ == "inside"


def test_other_threads_are_not_in_the_region():
    results = []
    with flow.autocast(dtype=half):
        thread = threading.Thread(target=lambda: results.append(product()))
        thread.start()
        thread.join()
        assert product() is half
    assert results == [single]


def test_double_integers_and_outputs_are_left_alone():
    with flow.autocast(dtype=half):
        assert product(flow.ones(2, 2, dtype=double)) is double
        assert flow.ones(2, dtype=flow.int64).sum().dtype is flow.int64
        assert flow.ones(2, 2).exp_().dtype is single
        assert flow.ones(2, 2).half().exp_().dtype is half


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("cuda",), DeviceError),
        ((flow.float16,), ArgumentTypeError),
        (("cpu", flow.float32), ArgumentError),
        (("cpu", half, True, False), ArgumentError),
    ],
)
def test_what_cannot_be_is_refused(arguments, error):
    with pytest.raises(error):
        flow.autocast(*arguments)


def test_a_device_that_is_not_there_may_be_switched_off():
    with flow.autocast("cuda", enabled=False):
        assert product() is single
    assert flow.amp.is_autocast_available("cpu")
    assert not flow.amp.is_autocast_available("cuda")


# --- gradients ----------------------------------------------------------------------------------


def gradients(model, x, y, region):
    for p in model.parameters():
        p.grad = None
    with region:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss, [p.grad for p in model.parameters()]


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (6, 8)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(16, 4),
        ),
        (6, 2, 8, 8),
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.LayerNorm(8), nn.Softplus(), nn.Linear(8, 8), nn.RMSNorm(8),
            nn.PReLU(), nn.Softmax(-1), nn.Linear(8, 4),
        ),
        (6, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_float32_and_near_those_of_float32(name):
    make, shape = MODELS[name]
    flow.manual_seed(0)
    model = make()
    x, y = flow.randn(*shape), flow.randint(0, 4, (6,))
    loss, slopes = gradients(model, x, y, flow.autocast(dtype=half))
    plain, expected = gradients(model, x, y, flow.autocast(enabled=False))
    assert loss.dtype is single
    assert loss.item() != plain.item()  # or nothing was computed in float16
    assert loss.item() == pytest.approx(plain.item(), rel=5e-3)
    for ours, theirs in zip(slopes, expected, strict=True):
        assert ours.dtype is single
        size = max(1e-2, float(theirs.abs().max().item()))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=2e-2 * size)


def test_backward_inside_a_region_is_backward_outside():
    flow.manual_seed(0)
    model, x, y = MODELS["norms"][0](), flow.randn(6, 8), flow.randint(0, 4, (6,))
    _, outside = gradients(model, x, y, flow.autocast(dtype=half))
    for p in model.parameters():
        p.grad = None
    with flow.autocast(dtype=half):
        F.cross_entropy(model(x), y).backward()
        assert product() is half
    for p, g in zip(model.parameters(), outside, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g.numpy())


def test_a_parameter_is_converted_once_until_it_changes():
    w, x = flow.ones(4, 4, requires_grad=True), flow.ones(2, 4, dtype=half)

    def casts(function):
        return sum(i.name == "cast" for i in flow.vm.trace(function).instructions)

    with flow.autocast(dtype=half):
        assert casts(lambda: x @ w) == 1
        assert casts(lambda: (x @ w, x @ w)) == 0
        with flow.no_grad():
            w.mul_(2)
        assert casts(lambda: x @ w) == 1
        assert (x @ w)[0, 0].item() == 8
        with flow.no_grad():
            y = x @ w
        assert y.requires_grad is False
        (x @ w).sum().backward()
        (x @ w).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((4, 4), 4.0))
    with flow.autocast(dtype=half):
        assert casts(lambda: x @ w) == 1


def test_custom_functions_compute_in_what_they_are_given():
    calls = []

    class Twice(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(x.dtype)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            calls.append(g.dtype)
            return g * 2

    w = flow.ones(2, 2, requires_grad=True)
    with flow.autocast(dtype=half):
        Twice.apply(w @ w).sum().backward()
    assert calls == [half, half]
    assert w.grad.dtype is single


def test_a_checkpoint_computes_again_as_it_did():
    flow.manual_seed(0)
    model, x = MODELS["mlp"][0](), flow.randn(6, 8)
    results = []
    for run in (model, lambda v: flow.utils.checkpoint.checkpoint(model, v)):
        for p in model.parameters():
            p.grad = None
        with flow.autocast(dtype=half):
            out = run(x).sum()
        out.backward()
        results.append([p.grad.numpy() for p in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- GradScaler -----------------------------------------------------------------------------------


def test_scale_unscale_step_and_update_are_pytorchs():
    torch = pytest.importorskip("torch")
    values = [1.0, 2.0, np.inf, 0.5, 1.0, np.nan, -np.inf, 1.0, 1.0, 1.0, 3.0]
    options = {"init_scale": 8.0, "growth_interval": 2, "growth_factor": 3.0}
    scalers = flow.amp.GradScaler("cpu", **options), torch.amp.GradScaler("cpu", **options)
    p, q = flow.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    opts = flow.optim.Adam([p], lr=0.1), torch.optim.Adam([q], lr=0.1)
    for value in values:
        for lib, scaler, w, opt in zip((flow, torch), scalers, (p, q), opts, strict=True):
            opt.zero_grad()
            scaler.scale((w * lib.tensor([value, 1.0, 2.0])).sum()).backward()
            scaler.step(opt)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        assert scalers[0].state_dict() == scalers[1].state_dict()
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-6)
        np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
    assert opts[0].state[p]["step"] == sum(map(np.isfinite, values))


def test_gradients_may_be_clipped_between_unscale_and_step():
    w = flow.ones(2, requires_grad=True)
    opt = flow.optim.SGD([w], lr=1.0)
    scaler = flow.amp.GradScaler(init_scale=1024.0)
    scaler.scale((w * 30).sum()).backward()
    scaler.unscale_(opt)
    assert nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx(30 * 2**0.5)
    scaler.step(opt)
    scaler.update()
    np.testing.assert_allclose(w.numpy(), 1 - 0.5**0.5, rtol=1e-5)


def test_calls_in_another_order_are_refused():
    w = flow.ones(2, requires_grad=True)
    opt, scaler = flow.optim.SGD([w], lr=1.0), flow.amp.GradScaler()
    with pytest.raises(AutogradError, match="step"):
        scaler.update()
    scaler.scale(w.sum()).backward()
    scaler.unscale_(opt)
    with pytest.raises(AutogradError, match="already"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(AutogradError, match="already"):
        scaler.step(opt)
    with pytest.raises(AutogradError, match="after"):
        scaler.unscale_(opt)
    scaler.update()
    with pytest.raises(AutogradError, match="closure"):
        scaler.step(opt, lambda: None)
    with pytest.raises(ArgumentTypeError):
        scaler.scale(3.0)


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0.0},
        {"init_scale": float("inf")},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(ArgumentError):
        flow.amp.GradScaler(**options)
    flow.amp.GradScaler(enabled=False, **options)


def test_a_disabled_scaler_does_nothing():
    w = flow.ones(2, requires_grad=True)
    opt, scaler = flow.optim.SGD([w], lr=1.0), flow.amp.GradScaler(enabled=False)
    loss = w.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    assert w.tolist() == [0.0, 0.0]
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


def test_a_static_scale_stays_and_skips():
    w = flow.ones(2, requires_grad=True)
    opt, scaler = flow.optim.SGD([w], lr=1.0), flow.amp.StaticGradScaler(512.0)
    for value in (1.0, np.inf, 1.0):
        opt.zero_grad()
        scaler.scale((w * value).sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert w.tolist() == [-1.0, -1.0]


def test_state_goes_into_another_scaler():
    one, other = flow.amp.GradScaler(init_scale=4.0, growth_interval=7), flow.amp.GradScaler()
    one._tracker.fill_(3)
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert other.get_growth_interval() == 7
    with pytest.raises(ArgumentError):
        other.load_state_dict({})
    other.update(32.0)
    assert other.get_scale() == 32.0


@pytest.mark.parametrize("dtype", [half, single, double])
def test_float16_and_float64_gradients_are_unscaled_too(dtype):
    w = flow.ones(5, dtype=dtype, requires_grad=True)
    opt, scaler = flow.optim.SGD([w], lr=1.0), flow.amp.GradScaler(init_scale=64.0)
    w.grad = flow.arange(5, dtype=dtype) * 64
    scaler.unscale_(opt)
    assert w.grad.tolist() == [0, 1, 2, 3, 4]
    assert w.grad.dtype is dtype


def train(model, steps, amp, scaler=None):
    model = copy.deepcopy(model)
    opt = flow.optim.Adam(model.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    x = flow.from_numpy(rng.standard_normal((32, 8)).astype(np.float32))
    y = flow.from_numpy(rng.integers(0, 4, 32))
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        with flow.autocast(dtype=half, enabled=amp):
            loss = F.cross_entropy(model(x), y)
        if scaler is None:
            loss.backward()
            opt.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        losses.append(loss.item())
    return losses


def test_training_in_mixed_precision_comes_to_the_same_loss():
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    plain = train(model, 40, False)
    mixed = train(model, 40, True, flow.amp.GradScaler(init_scale=2.0**10, growth_interval=10))
    assert plain[-1] < 0.6 * plain[0]
    assert mixed[-1] == pytest.approx(plain[-1], rel=0.08)


@pytest.mark.parametrize("cast", [None, "float32"])
@pytest.mark.parametrize("around", [None, "bfloat16"])
def test_custom_functions_know_their_region(cast, around):
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        notes = []
        amp = lib.amp

        class Twice(lib.autograd.Function):
            @staticmethod
            @amp.custom_fwd(device_type="cpu", cast_inputs=cast and getattr(lib, cast))
            def forward(ctx, x, w, results=notes):
                ctx.save_for_backward(x, w)
                out = x @ w
                results.append((x.dtype, out.dtype))
                return out

            @staticmethod
            @amp.custom_bwd(device_type="cpu")
            def backward(ctx, g, results=notes, lib=lib):
                x, w = ctx.saved_tensors
                results.append((lib.ones(2, 2) @ lib.ones(2, 2)).dtype)
                return (g.float() @ w.float().t()).to(x.dtype), None

        x = lib.ones(2, 2, dtype=lib.bfloat16 if around else lib.float32, requires_grad=True)
        w = lib.ones(2, 2, dtype=x.dtype)
        kind = getattr(lib, around) if around else lib.bfloat16
        with lib.autocast("cpu", dtype=kind, enabled=around is not None):
            out = Twice.apply(x, w)
        out.float().sum().backward()
        results.append(str(notes).replace("torch", "flow"))
    assert results[0] == results[1]


def test_custom_functions_need_a_device_type():
    for name in ("custom_fwd", "custom_bwd"):
        with pytest.raises(ValueError, match="device_type is a string"):
            getattr(flow.amp, name)(device_type=1)


def test_the_older_names_have_the_older_order():
    from_cuda = importlib.import_module("flowvm.cuda.amp")
    assert flow.cuda.amp.GradScaler is from_cuda.GradScaler
    with pytest.warns(UserWarning, match="no CUDA device is available"):
        scaler = flow.cuda.amp.GradScaler(512.0)
    assert not scaler.is_enabled()
    with (
        pytest.warns(UserWarning, match="no CUDA device is available"),
        flow.cuda.amp.autocast(True),
    ):
        assert (flow.ones(2, 2) @ flow.ones(2, 2)).dtype is flow.float32
    with flow.cuda.amp.autocast(False):
        assert (flow.ones(2, 2) @ flow.ones(2, 2)).dtype is flow.float32

    class Same(flow.autograd.Function):
        @staticmethod
        @flow.cuda.amp.custom_fwd
        def forward(ctx, x):
            return x * 1

        @staticmethod
        @flow.cuda.amp.custom_bwd
        def backward(ctx, g):
            return g

    x = flow.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Same.apply(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(AttributeError, match=r"flowvm\.cuda has no 'other'"):
        _ = flow.cuda.other

"""Steps of models that are made of many small instructions, each written once for two libraries.

A function takes flowvm or PyTorch and returns its eager step without arguments.  Sizes are those of
the papers' small settings, so that issuing, scheduling and short kernels count as much as products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[], Any]


def crnn(lib: Any) -> Step:
    """A CRNN (Shi and others, 2015) of half width on 8 lines of 32x100 pixels, CTC, Adam."""
    nn = lib.nn

    def unit(inputs: int, outputs: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Sequential(
                unit(1, 32), nn.MaxPool2d(2), unit(32, 64), nn.MaxPool2d(2), unit(64, 128),
                unit(128, 128), nn.MaxPool2d((2, 1)), unit(128, 256), nn.MaxPool2d((4, 1)),
            )  # fmt: skip
            self.read = nn.LSTM(256, 128, 2, bidirectional=True)
            self.head = nn.Linear(256, 37)

        def forward(self, x: Any) -> Any:
            columns = self.look(x).squeeze(2).permute(2, 0, 1)
            return nn.functional.log_softmax(self.head(self.read(columns)[0]), -1)

    model = Model()
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-3)
    x, y = lib.randn(8, 1, 32, 100), lib.randint(1, 37, (8, 8))
    sizes, lengths = lib.full((8,), 25), lib.full((8,), 8)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.ctc_loss(model(x), y, sizes, lengths).backward()
        optimizer.step()

    return step


def spline_flow(lib: Any) -> Step:
    """Four couplings by rational-quadratic splines (Durkan and others, 2019) of 8 bins, Adam.

    256 points of 6 numbers, networks of 64; the code follows the paper's.
    """
    nn, functional = lib.nn, lib.nn.functional
    bins, bound, least = 8, 3.0, 1e-3

    def edges(heights: Any) -> Any:
        shares = least + (1 - least * bins) * functional.softmax(heights, -1)
        sums = functional.pad(lib.cumsum(shares, -1), (1, 0))
        return 2 * bound * sums - bound

    def spline(x: Any, parameters: Any) -> Any:
        xs, ys = edges(parameters[..., :bins]), edges(parameters[..., bins : 2 * bins])
        slopes = least + functional.softplus(functional.pad(parameters[..., 2 * bins :], (1, 1)))
        inside = (x >= -bound) & (x <= bound)
        z = lib.clamp(x, -bound, bound)
        place = lib.searchsorted(xs[..., 1:-1].contiguous(), z[..., None], right=True)

        def at(values: Any, index: Any) -> Any:
            return lib.gather(values, -1, index)[..., 0]

        left, bottom = at(xs, place), at(ys, place)
        width, height = at(xs, place + 1) - left, at(ys, place + 1) - bottom
        first, last = at(slopes, place), at(slopes, place + 1)
        rise = height / width
        t = (z - left) / width
        both = t * (1 - t)
        below = rise + (first + last - 2 * rise) * both
        y = bottom + height * (rise * t * t + first * both) / below
        slope = rise * rise * (last * t * t + 2 * rise * both + first * (1 - t) * (1 - t))
        logs = lib.log(slope) - 2 * lib.log(below)
        return lib.where(inside, y, x), lib.where(inside, logs, lib.zeros_like(logs))

    class Coupling(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                nn.Linear(64, 3 * (3 * bins - 1)),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            fixed, moving = x.chunk(2, -1)
            moved, logs = spline(moving, self.net(fixed).reshape(-1, 3, 3 * bins - 1))
            return lib.cat([moved, fixed], -1), logs.sum(-1)

    couplings = nn.ModuleList([Coupling() for _ in range(4)])
    optimizer = lib.optim.Adam(couplings.parameters(), lr=1e-3)
    data = lib.randn(256, 6)

    def step() -> None:
        optimizer.zero_grad()
        x, logs = data, lib.zeros(256)
        for coupling in couplings:
            x, more = coupling(x)
            logs = logs + more
        loss = (0.5 * (x * x).sum(-1) - logs).mean()
        loss.backward()
        optimizer.step()

    return step


def _deep(lib: Any) -> tuple[Any, Any, Any]:
    """A perceptron of eight layers of 64 and 16 samples of its data: 16 small parameters."""
    nn = lib.nn
    layers = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, 10)), lib.randn(16, 64), lib.randint(0, 10, (16,))


def lars(lib: Any) -> Step:
    """LARS (You and others, 2017) written by hand: two norms and a step for each parameter."""
    model, x, y = _deep(lib)
    parameters = list(model.parameters())
    momenta = [lib.zeros_like(p) for p in parameters]
    loss_of = lib.nn.CrossEntropyLoss()

    def step() -> None:
        model.zero_grad()
        loss_of(model(x), y).backward()
        with lib.no_grad():
            for p, momentum in zip(parameters, momenta, strict=True):
                size, slope = p.norm(), p.grad.norm()
                trust = lib.where(size > 0, 0.001 * size / (slope + 1e-4 * size + 1e-9), 1.0)
                change = p.grad.add(p, alpha=1e-4)
                momentum.mul_(0.9).add_(change * trust)
                p.sub_(0.1 * momentum)

    return step


def averaged(lib: Any) -> Step:
    """SGD with clipped gradients, and an exponential average of the parameters."""
    model, x, y = _deep(lib)
    optimizer = lib.optim.SGD(model.parameters(), lr=0.01)
    swa = lib.optim.swa_utils
    average = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.999))
    loss_of = lib.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)

    return step


def averaged_by_hand(lib: Any) -> Step:
    """An exponential average as most code writes it: two calls for each of 16 parameters."""
    model, _, _ = _deep(lib)
    parameters = [p.detach() for p in model.parameters()]
    averages = [p.clone() for p in parameters]

    def step() -> None:
        with lib.no_grad():
            for average, p in zip(averages, parameters, strict=True):
                average.mul_(0.999).add_(p, alpha=0.001)

    return step


def clipped(lib: Any) -> Step:
    """The norm of 16 gradients, and all scaled by it."""
    model, x, y = _deep(lib)
    lib.nn.CrossEntropyLoss()(model(x), y).backward()
    parameters = list(model.parameters())

    def step() -> None:
        lib.nn.utils.clip_grad_norm_(parameters, 1e-3)

    return step


def quantized(lib: Any) -> Step:
    """A perceptron whose weights and activations are rounded to 8 bits, by straight-through."""
    nn = lib.nn

    def rounded(x: Any) -> Any:
        low, high = x.detach().min(), x.detach().max()
        scale = lib.clamp((high - low) / 255, min=1e-8)
        zero = lib.round(-low / scale)
        levels = lib.clamp(lib.round(x / scale) + zero, 0, 255)
        return x + ((levels - zero) * scale - x).detach()

    class Quantized(nn.Linear):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            return nn.functional.linear(rounded(x), rounded(self.weight), self.bias)

    model = nn.Sequential(
        Quantized(64, 64), nn.ReLU(), Quantized(64, 64), nn.ReLU(), Quantized(64, 10)
    )
    x, y = lib.randn(32, 64), lib.randint(0, 10, (32,))
    optimizer = lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def likelihoods(lib: Any) -> Step:
    """The log-likelihood of 128 points under five distributions, with backward."""
    dist = lib.distributions
    data, shares = lib.randn(128), lib.rand(128) * 0.9 + 0.05
    counts = lib.randint(0, 9, (128,)).to(lib.float32)
    free = [lib.rand(4).requires_grad_() for _ in range(6)]

    def step() -> None:
        for p in free:
            p.grad = None
        a, b, c, d, e, f = free
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=a), dist.Normal(b, c.exp()))
        total = mixture.log_prob(data).sum()
        positive = lib.nn.functional.softplus(d) + 0.1
        total = total + dist.Gamma(positive, positive + 1).log_prob(shares[:, None]).sum()
        total = total + dist.Beta(positive, positive + 1).log_prob(shares[:, None]).sum()
        total = total + dist.Poisson(e.exp()).log_prob(counts[:, None]).sum()
        total = total + dist.StudentT(positive + 2, f, e.exp()).log_prob(data[:, None]).sum()
        total.backward()

    return step


MODELS = (
    ("CRNN step with CTC, 8 lines", crnn, 0.8),
    ("spline flow step, four couplings", spline_flow, 0.6),
    ("LARS step, 16 parameters", lars, 0.6),
    ("step with clipping and an average", averaged, 0.6),
    ("average of 16 parameters by hand", averaged_by_hand, 0.6),
    ("clip_grad_norm_ of 16 parameters", clipped, 0.6),
    ("8-bit MLP step, straight-through", quantized, 0.6),
    ("log-likelihoods of five distributions", likelihoods, 0.6),
)

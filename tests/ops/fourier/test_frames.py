"""`stft` and `istft` against PyTorch's."""

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

_numbers = np.random.default_rng(22)
X = _numbers.standard_normal((2, 90))
HANN = np.hanning(17)[:-1]
OPTIONS = [
    {},
    {"hop_length": 5, "window": HANN},
    {"hop_length": 3, "win_length": 12, "window": HANN[:12] + 0.5, "normalized": True},
    {"center": False, "window": HANN + 0.1},
    {"onesided": False, "window": HANN},
]


def close(ours, theirs):
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-12)


def called(library, name, array, options):
    make = torch.tensor if library is torch else flow.tensor
    options = {k: make(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    x = make(array).requires_grad_(True)
    out = getattr(library, name)(x, 16, **options)
    (out.abs() ** 2 if out.is_complex() else out**2).sum().backward()
    return out, x.grad


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of windows that are not given
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
@pytest.mark.parametrize("array", [X, X[0]], ids=["signals", "signal"])
def test_there_and_back(array, options):
    complex_options = {**options, "return_complex": True}
    frames, theirs = (called(library, "stft", array, complex_options) for library in (flow, torch))
    for a, b in zip(frames, theirs, strict=True):
        close(a, b)
    spectrum = theirs[0].detach().numpy()
    for length in (None, 80):
        back = {**options, "length": length}
        for a, b in zip(
            called(flow, "istft", spectrum, back),
            called(torch, "istft", spectrum, back),
            strict=True,
        ):
            close(a, b)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_complex_signals_and_pairs():
    z = X[0] + 1j * X[1]
    close(flow.stft(flow.tensor(z), 16), torch.stft(torch.tensor(z), 16, return_complex=True))
    ours = flow.stft(flow.tensor(X), 16, return_complex=False, pad_mode="constant")
    theirs = torch.stft(torch.tensor(X), 16, return_complex=False, pad_mode="constant")
    close(ours, theirs)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: flow.stft(flow.tensor(X), 16), TypeError),
        (lambda: flow.stft(flow.tensor(X), 16, 0, return_complex=True), ValueError),
        (lambda: flow.stft(flow.tensor(X), 16, win_length=17, return_complex=True), ValueError),
        (lambda: flow.stft(flow.ones(3), 16, center=False, return_complex=True), RuntimeError),
        (lambda: flow.istft(flow.tensor(X), 16), RuntimeError),
        (lambda: flow.istft(flow.tensor(X[:, :9] * 1j), 16), RuntimeError),
    ],
)
def test_what_is_wrong_is_an_error_at_the_call(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert len(str(caught.value)) > 10


def test_complex_windows_come_back():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100) + 1j * rng.standard_normal(100)
    window = flow.tensor(rng.uniform(0.5, 1, 10) + 1j * rng.uniform(0.5, 1, 10))
    frames = flow.stft(flow.tensor(x), 10, 3, window=window, onesided=False, return_complex=True)
    back = flow.istft(frames, 10, 3, window=window, onesided=False, return_complex=True, length=100)
    np.testing.assert_allclose(back.numpy(), x)

"""flow.signal.windows against PyTorch, and refused calls."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.signal import windows

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "exponential": [{}, {"tau": 3.0}, {"sym": False, "center": 1.5, "tau": 0.7}],
    "gaussian": [{}, {"std": 2.5}],
    "kaiser": [{}, {"beta": 0.0}, {"beta": 7}],
    "general_cosine": [{"a": [0.5, 0.3, 0.2]}, {"a": (1.0,)}],
    "general_hamming": [{}, {"alpha": 0.7}],
}


@pytest.mark.parametrize("name", windows.__all__)
@pytest.mark.parametrize("sym", [True, False])
def test_windows_are_pytorchs(name: str, sym: bool) -> None:
    torch = pytest.importorskip("torch")
    assert windows.__all__ == torch.signal.windows.__all__
    for inputs in OPTIONS.get(name, [{}]):
        options = {"sym": sym, **inputs}
        for length in (0, 1, 2, 5, 8):
            for dtype in ("float64", "float32", None):
                results = []
                for lib in (flow, torch):
                    kind = {} if dtype is None else {"dtype": getattr(lib, dtype)}
                    results.append(getattr(lib.signal.windows, name)(length, **options, **kind))
                mine, theirs = results
                assert mine.dtype.name == (dtype or "float32")
                np.testing.assert_allclose(
                    mine.numpy(), theirs.numpy(), atol=1e-12 if dtype == "float64" else 2e-6
                )


def test_a_window_takes_what_tensors_take() -> None:
    window = windows.hann(4, sym=False, layout=flow.strided, device="cpu", requires_grad=True)
    assert window.requires_grad
    np.testing.assert_allclose(window.detach().numpy(), [0, 0.5, 1, 0.5], atol=1e-7)
    np.testing.assert_array_equal(window.detach().numpy(), flow.hann_window(4).numpy())


@pytest.mark.parametrize(
    ("do", "error", "message"),
    [
        (lambda: windows.hann(-1), ValueError, "got M=-1"),
        (lambda: windows.hann(3, dtype=flow.float16), ValueError, "got dtype float16"),
        (lambda: windows.hann(3, dtype=flow.int64), ValueError, "got dtype int64"),
        (lambda: windows.hann(3, other=1), TypeError, "other"),
        (lambda: windows.hann(3, False), TypeError, "positional"),
        (lambda: windows.hann(3.5), TypeError, "M"),
        (lambda: windows.exponential(3, tau=0), ValueError, "tau must be positive, got 0"),
        (lambda: windows.exponential(3, center=1.0), ValueError, "sym=False"),
        (lambda: windows.gaussian(3, std=-1), ValueError, "std must be positive, got -1"),
        (lambda: windows.kaiser(3, beta=-1), ValueError, "got -1"),
        (lambda: windows.general_cosine(3, a=1), TypeError, "a is a list"),
        (lambda: windows.general_cosine(3, a=[]), ValueError, "got none"),
        (lambda: windows.general_cosine(3), TypeError, "a"),
    ],
)
def test_what_cannot_be_says_so(do: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        do()

"""Sine waves learned and drawn further: two LSTM cells, trained by LBFGS.

The problem is that of PyTorch's example `time_sequence_prediction`, with fewer and shorter waves.
It is trained 20 steps in float64, as eager code, with a graph, and with PyTorch where that is
installed: the losses agree.  LBFGS decides by losses how often it calls its closure, so the graph
is the closure, and the steps are taken outside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from curves import compare

HIDDEN, WAVES, LENGTH, PERIOD = 12, 8, 16, 20


# %% The model and its training, for flowvm or PyTorch: only the library differs.
def make(lib: Any) -> Any:
    """The model of a library."""
    nn = lib.nn

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm1 = nn.LSTMCell(1, HIDDEN)
            self.lstm2 = nn.LSTMCell(HIDDEN, HIDDEN)
            self.linear = nn.Linear(HIDDEN, 1)

        def forward(self, inputs: Any, future: int = 0) -> Any:
            outputs = []
            h_t = lib.zeros(inputs.size(0), HIDDEN, dtype=lib.double)
            c_t = lib.zeros(inputs.size(0), HIDDEN, dtype=lib.double)
            h_t2 = lib.zeros(inputs.size(0), HIDDEN, dtype=lib.double)
            c_t2 = lib.zeros(inputs.size(0), HIDDEN, dtype=lib.double)
            for input_t in inputs.split(1, dim=1):
                h_t, c_t = self.lstm1(input_t, (h_t, c_t))
                h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
                output = self.linear(h_t2)
                outputs += [output]
            for _ in range(future):  # what it said is what it hears
                h_t, c_t = self.lstm1(output, (h_t, c_t))
                h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
                output = self.linear(h_t2)
                outputs += [output]
            return lib.cat(outputs, dim=1)

    return Sequence()


def training(lib: Any, model: Any, compiled: Callable[..., Any]) -> Any:
    """A function that takes one step."""
    criterion = lib.nn.MSELoss()
    optimizer = lib.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4)

    @compiled
    def loss_of(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    def step(x: Any, y: Any) -> Any:
        return optimizer.step(lambda: loss_of(x, y))

    return step


def waves() -> np.ndarray:
    """Sine waves of unlike phases, (WAVES, LENGTH + 1)."""
    rng = np.random.default_rng(2)
    shifts = rng.integers(-4 * PERIOD, 4 * PERIOD, (WAVES, 1))
    return np.sin((np.arange(LENGTH + 1) + shifts) * 2 * np.pi / PERIOD)


# %% The same 20 steps, each way: each place of a wave from those before it.
whole = waves()
batch = whole[:, :-1].copy(), whole[:, 1:].copy()
compare(make, training, [batch] * 20, double=True)

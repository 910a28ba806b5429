"""Recurrent layers and cells: parameters with PyTorch's names, over the functions of `ops`.

Weights start as in PyTorch: uniform within 1 / sqrt(hidden_size), biases too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.nn import init
from flowvm.nn.module import Module
from flowvm.nn.modules._check import flag, integer, probability
from flowvm.nn.parameter import Parameter
from flowvm.nn.utils.rnn import PackedSequence

# public: nn

if TYPE_CHECKING:
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import DType

_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "RNN_TANH": (ops.rnn_tanh, 1),
    "RNN_RELU": (ops.rnn_relu, 1),
    "LSTM": (ops.lstm, 4),
    "GRU": (ops.gru, 3),
}


def _uniform(module: Module, hidden_size: int) -> None:
    bound = 1 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for param in module.parameters():
        init.uniform_(param, -bound, bound)


class RNNBase(Module):
    """Base of RNN, LSTM and GRU: `mode` is "RNN_TANH", "RNN_RELU", "LSTM" or "GRU".

    Parameters, for layer k: weight_ih_lk, weight_hh_lk, bias_ih_lk, bias_hh_lk, and weight_hr_lk
    with a projection; for the other direction with the ending _reverse.

    >>> nn.RNNBase("GRU", 3, 2, num_layers=2).weight_hh_l1.shape  # three gates
    flow.Size([6, 2])
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if mode not in _FUNCTIONS:
            raise ArgumentError(f"{self}: mode must be one of {list(_FUNCTIONS)}, got {mode!r}")
        self.mode = mode
        self.input_size = integer(self, "input_size", input_size, 1)
        self.hidden_size = integer(self, "hidden_size", hidden_size, 1)
        self.num_layers = integer(self, "num_layers", num_layers, 1)
        self.bias = flag(self, "bias", bias)
        self.batch_first = flag(self, "batch_first", batch_first)
        self.dropout = probability(self, "dropout", dropout)
        self.bidirectional = bidirectional
        self.proj_size = integer(self, "proj_size", proj_size)
        if self.proj_size >= self.hidden_size:
            raise ArgumentError(
                f"{mode}: proj_size must be smaller than hidden_size {hidden_size}, got {proj_size}"
            )
        if self.dropout > 0 and num_layers == 1:
            warnings.warn(
                f"{mode}: dropout={dropout} acts between layers, and num_layers is 1: it does "
                "nothing",
                stacklevel=3,
            )
        self._names: list[list[str]] = []
        self._register(device, dtype)
        self.reset_parameters()

    def _register(self, device: Device | str | None, dtype: DType | None) -> None:
        gates = _FUNCTIONS[self.mode][1] * self.hidden_size
        outs = self.proj_size or self.hidden_size
        for layer in range(self.num_layers):
            ins = outs * self._ways if layer else self.input_size
            for ending in ("", "_reverse")[: self._ways]:
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (gates, ins), "weight_hh": (gates, outs),
                }  # fmt: skip
                if self.bias:
                    shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                if self.proj_size:
                    shapes["weight_hr"] = (outs, self.hidden_size)
                names = {f"{name}_l{layer}{ending}": shape for name, shape in shapes.items()}
                for name, shape in names.items():
                    value = ops.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(name, Parameter(value))
                self._names.append(list(names))

    @property
    def _ways(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for names in self._names for name in names]

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._names]

    def reset_parameters(self) -> None:
        """Draw new weights."""
        _uniform(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: parameters may lie anywhere."""

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        shown += [f"proj_size={self.proj_size}"] * bool(self.proj_size)
        shown += [f"num_layers={self.num_layers}"] * (self.num_layers != 1)
        shown += ["bias=False"] * (not self.bias)
        shown += ["batch_first=True"] * bool(self.batch_first)
        shown += [f"dropout={self.dropout}"] * bool(self.dropout)
        shown += ["bidirectional=True"] * bool(self.bidirectional)
        return ", ".join(shown)

    def forward(self, input: Any, hx: object = None) -> tuple[Any, Any]:
        function, _ = _FUNCTIONS[self.mode]
        flags = self.bias, self.num_layers, self.dropout, self.training, self.bidirectional
        if isinstance(input, PackedSequence):
            samples = int(input.batch_sizes[0].item())
            state = self._state(input.data, hx, samples, True, input.sorted_indices)
            data, *after = function(
                self._checked(input.data, 2), input.batch_sizes, state, self._flat_weights, *flags
            )
            output = PackedSequence(
                data, input.batch_sizes, input.sorted_indices, input.unsorted_indices
            )
            if input.unsorted_indices is not None:
                after = [ops.index_select(s, 1, input.unsorted_indices) for s in after]
            return output, tuple(after) if self.mode == "LSTM" else after[0]
        batched = input.ndim == 3
        x = self._checked(input, 3 if batched else 2)
        if not batched:
            x = x.unsqueeze(0 if self.batch_first else 1)
        state = self._state(x, hx, x.shape[0 if self.batch_first else 1], batched, None)
        output, *after = function(x, state, self._flat_weights, *flags, self.batch_first)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            after = [s.squeeze(1) for s in after]
        return output, tuple(after) if self.mode == "LSTM" else after[0]

    def _checked(self, x: Tensor, ndim: int) -> Tensor:
        if x.ndim != ndim:
            raise ArgumentError(
                f"{type(self).__name__}: the input must be (steps, samples, features) or (steps, "
                f"features), got shape {tuple(x.shape)}"
            )
        if x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: the input has {x.shape[-1]} features, input_size is "
                f"{self.input_size}"
            )
        return x

    def _state(
        self, x: Tensor, hx: object, samples: int, batched: bool, order: Tensor | None
    ) -> tuple[Tensor, ...] | Tensor:
        """The first state, checked, with the samples in the order of the input's: what the function
        takes.
        """
        state = self._states(x, hx, samples, batched, order)
        return state if self.mode == "LSTM" else state[0]

    def _states(
        self, x: Tensor, hx: Any, samples: int, batched: bool, order: Tensor | None
    ) -> tuple[Tensor, ...]:
        count = self.num_layers * self._ways
        widths = [self.proj_size or self.hidden_size]
        if self.mode == "LSTM":
            widths.append(self.hidden_size)
        if hx is None:
            return tuple(
                ops.zeros((count, samples, width), dtype=x.dtype, device=x.device)
                for width in widths
            )
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        around = (count, samples) if batched else (count,)
        shapes = [(*around, width) for width in widths]
        states = [tuple(s.shape) for s in state]
        if states != shapes:
            raise ShapeError(
                f"{type(self).__name__}: the hidden state must have shape "
                f"{' and '.join(map(str, shapes))}, got {' and '.join(map(str, states))}"
            )
        if not batched:
            return tuple(s.unsqueeze(1) for s in state)
        return state if order is None else tuple(ops.index_select(s, 1, order) for s in state)


def _no_projection(module: RNNBase, proj_size: int | None) -> None:
    if proj_size is not None:
        raise ArgumentError(f"{type(module).__name__}: proj_size={proj_size} is for LSTM alone")


# public: nn
class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh) for each layer; relu in place of tanh with
    nonlinearity="relu".

    Input (steps, samples, features), (samples, steps, features) if batch_first, (steps, features),
    or a PackedSequence; and the first h (layers * directions, samples, hidden), zero if not given.
    Output: (h of the last layer at each step, the last h of each layer and direction).

    >>> output, h = nn.RNN(10, 20, num_layers=2)(flow.randn(5, 3, 10))
    >>> output.shape, h.shape
    (flow.Size([5, 3, 20]), flow.Size([2, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
        proj_size: int | None = None,
    ) -> None:
        _no_projection(self, proj_size)
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f'RNN: nonlinearity must be "tanh" or "relu", got {nonlinearity!r}')
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, 0, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


# public: nn
class LSTM(RNNBase):
    """Long short-term memory, layer over layer.

    i, f, o = sigmoid and g = tanh of W_ih x + b_ih + W_hh h + b_hh; c = f c + i g; h = o tanh(c),
    times W_hr where proj_size is given.  Input and output as `RNN`'s, with (h, c) in h's place.

    >>> output, (h, c) = nn.LSTM(10, 20, bidirectional=True)(flow.randn(5, 3, 10))
    >>> output.shape, c.shape
    (flow.Size([5, 3, 40]), flow.Size([2, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, device, dtype,
        )  # fmt: skip


# public: nn
class GRU(RNNBase):
    """Gated recurrent units, layer over layer.

    r, z = sigmoid of W_ih x + b_ih + W_hh h + b_hh; n = tanh(W_in x + b_in + r (W_hn h + b_hn));
    h = (1 - z) n + z h.  Input and output as `RNN`'s.

    >>> output, h = nn.GRU(10, 20, batch_first=True)(flow.randn(3, 5, 10))
    >>> output.shape, h.shape
    (flow.Size([3, 5, 20]), flow.Size([1, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DType | None = None,
        proj_size: int | None = None,
    ) -> None:
        _no_projection(self, proj_size)
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            0, device, dtype,
        )  # fmt: skip


# --- cells ----------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """Base of cells: weight_ih, weight_hh, bias_ih and bias_hh of `num_chunks` gates.

    >>> nn.RNNCellBase(3, 2, True, num_chunks=4).weight_ih.shape
    flow.Size([8, 3])
    """

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size = integer(self, "input_size", input_size)
        self.hidden_size = integer(self, "hidden_size", hidden_size)
        self.bias = bias
        gates = num_chunks * self.hidden_size

        def parameter(*shape: int) -> Parameter:
            return Parameter(ops.empty(shape, device=device, dtype=dtype))

        self.weight_ih = parameter(gates, self.input_size)
        self.weight_hh = parameter(gates, self.hidden_size)
        self.register_parameter("bias_ih", parameter(gates) if bias else None)
        self.register_parameter("bias_hh", parameter(gates) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        _uniform(self, self.hidden_size)

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        return shown if self.bias else f"{shown}, bias=False"

    def _step(
        self, function: Callable[..., Any], input: Tensor, hx: Iterable[Tensor] | None, states: int
    ) -> tuple[Tensor, ...]:
        name = type(self).__name__
        if input.ndim not in (1, 2):
            raise ArgumentError(
                f"{name}: the input must be (samples, features) or (features,), got shape "
                f"{tuple(input.shape)}"
            )
        x = input if input.ndim == 2 else input.unsqueeze(0)
        if x.shape[1] != self.input_size:
            raise ShapeError(
                f"{name}: the input has {x.shape[1]} features, input_size is {self.input_size}"
            )
        if hx is None:
            zero = ops.zeros((x.shape[0], self.hidden_size), dtype=x.dtype, device=x.device)
            state: tuple[Tensor, ...] = (zero,) * states
        else:
            state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
            for s in state:
                if s.ndim not in (1, 2):
                    raise ArgumentError(
                        f"{name}: hx must have 1 or 2 dimensions, got shape {tuple(s.shape)}"
                    )
            state = tuple(s if s.ndim == 2 else s.unsqueeze(0) for s in state)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        after = function(x, state if states == 2 else state[0], *weights)
        after = after if states == 2 else (after,)
        return tuple(after) if input.ndim == 2 else tuple(s.squeeze(0) for s in after)


class RNNCell(RNNCellBase):
    """One step of an `RNN`: h from input (samples, features) and h (samples, hidden).

    >>> nn.RNNCell(10, 20)(flow.randn(6, 10)).shape
    flow.Size([6, 20])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return (
            shown if self.nonlinearity == "tanh" else f"{shown}, nonlinearity={self.nonlinearity}"
        )

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        functions = {"tanh": ops.rnn_tanh_cell, "relu": ops.rnn_relu_cell}
        if self.nonlinearity not in functions:
            raise ShapeError(
                f'RNNCell: nonlinearity must be "tanh" or "relu", got {self.nonlinearity!r}'
            )
        return self._step(functions[self.nonlinearity], input, hx, 1)[0]


class LSTMCell(RNNCellBase):
    """One step of an `LSTM`: (h, c) from input (samples, features) and (h, c).

    >>> h, c = nn.LSTMCell(10, 20)(flow.randn(6, 10))
    >>> h.shape
    flow.Size([6, 20])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        h, c = self._step(ops.lstm_cell, input, hx, 2)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a `GRU`: h from input (samples, features) and h (samples, hidden).

    >>> nn.GRUCell(10, 20)(flow.randn(6, 10)).shape
    flow.Size([6, 20])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(ops.gru_cell, input, hx, 1)[0]

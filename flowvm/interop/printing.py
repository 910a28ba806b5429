"""The text of tensors at a prompt, in a debugger and in a notebook: `repr`, `str`, HTML.

Values are written as PyTorch writes them.  `repr` is called by debuggers on every local and by
exception reports, so it

- issues nothing and waits for the tensor's own writer alone, at most `PATIENCE`; a tensor that is
  not there yet is shown as pending, with the instruction that will write it (`print` and `str` are
  asked for the value, and wait for it);
- never raises and marks no failure as seen: a failed tensor shows its error;
- copies the elements that it prints and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.eager.global_calls import Globals
from flowvm.eager.tensor import Fields, Tensor, method
from flowvm.eager.values import memory_now, wait_for
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.printable import printable
from flowvm.guards.regions import reverting
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import is_batched
from flowvm.meta.device import cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType, bool_, complex_of, get_default_dtype, int64
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.pending import poison_of, writer_within

if TYPE_CHECKING:
    import html

    from flowvm.cuda import element_reader
else:
    html = lazy("html")
    element_reader = lazy("flowvm.cuda.element_reader")

PATIENCE = 0.2  # seconds that a repr waits for a value
MESSAGE = 160  # characters of an error's message that a failed tensor shows


# --- options --------------------------------------------------------------------------------------


class PrintOptions(NamedTuple):
    """Under NumPy's and PyTorch's names."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None
    sync: bool = True


PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=float("inf")),
}
UNCHANGED: Any = object()

_options = PrintOptions()  # the process's; replaced as a whole, so any thread sees a consistent one


# public: flow
def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = UNCHANGED,
    sync: bool | None = None,
) -> None:
    """Set the options of printing tensors; options not given stay.

    precision   digits after the point (4)
    threshold   elements from which on the middle is left out (1000)
    edgeitems   elements at each end that are shown then (3)
    linewidth   characters of a line (80)
    profile     "default", "short" or "full", before the others are applied
    sci_mode    scientific notation always or never; None decides by the values (None)
    sync        wait for values, in `repr` a fifth of a second at most; False shows "pending" at
                once (True)

    >>> flow.set_printoptions(precision=2)
    >>> flow.tensor([1 / 3])
    tensor([0.33])
    >>> flow.set_printoptions(profile="default")
    """
    global _options
    if profile is not None and profile not in PROFILES:
        raise ArgumentError(f"set_printoptions: no profile {profile!r}; there are {list(PROFILES)}")
    numbers = {"precision": precision, "edgeitems": edgeitems, "linewidth": linewidth}
    for name, value in {**numbers, "threshold": threshold}.items():
        if value is not None and not (value >= 0):
            raise ArgumentError(f"set_printoptions: {name} cannot be negative, got {value!r}")
    everything: dict[str, Any] = {**numbers, "threshold": threshold, "sync": sync}
    changes = {name: value for name, value in everything.items() if value is not None}
    if sci_mode is not UNCHANGED:
        changes["sci_mode"] = sci_mode
    base = _options if profile is None else PROFILES[profile]._replace(sync=_options.sync)
    _options = base._replace(**changes)


# public: flow
def get_printoptions() -> dict[str, Any]:
    """The print options, as `set_printoptions` takes them.

    >>> flow.get_printoptions()["precision"]
    4
    """
    return _options._asdict()


# public: flow
def printoptions(**options: Any) -> AbstractContextManager[dict[str, Any]]:
    """Print options for a block: `with flow.printoptions(precision=2): print(x)`.

    >>> with flow.printoptions(precision=2):
    ...     print(flow.tensor([1 / 3]))
    tensor([0.33])
    """
    before = _options

    def undo() -> None:
        global _options
        _options = before

    def switch() -> dict[str, object]:
        set_printoptions(**options)
        return get_printoptions()

    return reverting(undo, switch)


# --- values ---------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """The elements to print, and their formats."""

    elements: Array  # the edges alone where the middle is left out
    text: Callable[[object], str]
    width: int
    cut: bool

    def gap(self, length: int, options: PrintOptions) -> bool:
        """Return True if the middle of a dimension of `length` is left out."""
        return self.cut and length > 2 * options.edgeitems


def _shown(t: Tensor, options: PrintOptions) -> Shown:
    edge, shape = options.edgeitems, t._meta.shape
    cut = t._meta.numel > options.threshold
    positions = [
        [*range(edge), *range(d - edge, d)] if cut and d > 2 * edge else [*range(d)] for d in shape
    ]
    dtype = t._meta.dtype
    elements = dtype.loaded(_elements(t, positions))
    if dtype.is_complex:
        text, width = _pair_text(elements, dtype, options)
    else:
        text, width = _column_text(elements, dtype, options)
    return Shown(elements, text, width, cut)


def _column_text(
    elements: Array, dtype: DType, options: PrintOptions
) -> tuple[Callable[[object], str], int]:
    """Return a function that writes all elements in one width, and this width."""
    text = _element_text(elements, dtype, options)
    width = max((len(text(v)) for v in _counted(elements, dtype).tolist()), default=1)
    return lambda v: text(v).rjust(width), width


def _pair_text(
    elements: Array, dtype: DType, options: PrintOptions
) -> tuple[Callable[[Any], str], int]:
    """Return a function that writes complex numbers, each part in its own notation, as in PyTorch,
    and the width.
    """
    first, left = _column_text(elements.real, dtype.real, options)
    second, right = _column_text(elements.imag, dtype.real, options)

    def text(value: complex) -> str:
        imaginary = second(value.imag).lstrip() + "j"
        return first(value.real) + ("" if imaginary[0] in "+-" else "+") + imaginary

    return text, left + right + 1


def _elements(t: Tensor, positions: list[list[int]]) -> Array:
    """Return a copy of the elements at `positions` of each dimension, as they are stored."""
    if isinstance(t._meta, GlobalMeta):
        t = Globals.gathered(t)
        wait_for(t)
    if t._meta.device is not cpu:
        return element_reader.elements(t, positions)
    picked = memory_now(t)[np.ix_(*(np.array(k, np.intp) for k in positions))]
    return np.array(picked)


def _counted(elements: Array, dtype: DType) -> Array:
    """Return the elements that decide on notation and width, as in PyTorch: no zeros, infinities,
    NaNs.
    """
    values: Array = elements.ravel()
    counts = np.isfinite(values) & (values != 0) if dtype.is_floating_point else slice(None)
    return np.array(values[counts])


def _element_text(elements: Array, dtype: DType, options: PrintOptions) -> Callable[[Any], str]:
    """Return a function that writes all elements in one notation, PyTorch's choice for the
    tensor.
    """
    if not dtype.is_floating_point:
        return str
    values = _counted(elements, dtype).astype(np.float64)
    whole = bool(np.all(values == np.ceil(values)))
    scientific = False
    if values.size:
        low, high = float(np.abs(values).min()), float(np.abs(values).max())
        scientific = high / low > 1000 or high > 1e8 or (low < 1e-4 and not whole)
        if options.sci_mode is not None:
            scientific = options.sci_mode
    digits = options.precision
    if scientific:
        return lambda v: f"{v:.{digits}e}"
    if whole:
        return lambda v: f"{v:.0f}." if np.isfinite(v) else f"{v:.0f}"
    return lambda v: f"{v:.{digits}f}"


def _nested(
    values: Any, shape: tuple[int, ...], indent: int, shown: Shown, options: PrintOptions
) -> str:
    """`values` (nested lists) in brackets, which begin at column `indent`."""
    if not shape:
        return shown.text(values)
    edge, newline = options.edgeitems, "\n" + " " * (indent + 1)
    gap = shown.gap(shape[0], options)
    if len(shape) > 1:
        rows = [_nested(v, shape[1:], indent + 1, shown, options) for v in values]
        rows[edge : len(rows) - edge] = ["..."] if gap else rows[edge : len(rows) - edge]
        return "[" + ("," + "\n" * (len(shape) - 2) + newline).join(rows) + "]"
    cells = [shown.text(v) for v in values]
    if gap:
        cells.insert(edge, " ..." if edge else "...")
    fit = max(1, (options.linewidth - indent) // (shown.width + 2))
    lines = [", ".join(cells[i : i + fit]) for i in range(0, len(cells), fit)]
    return "[" + ("," + newline).join(lines) + "]"


# --- repr -----------------------------------------------------------------------------------------


def _known_meta(t: Tensor) -> TensorMeta | None:
    """Return the meta, None if only the kernel will know it; do not wait."""
    try:
        meta: TensorMeta = Fields.__dict__["_meta"].__get__(t)
    except AttributeError:
        return None
    return meta


# the text of a global tensor in `repr`, because `repr` may be called on one rank alone
_APART = "<in parts on several ranks: print() puts them together, on all ranks>"


def _missing(t: Tensor, options: PrintOptions, ask: bool = False) -> str | None:
    """Return the reason why no values can be shown, or None; `ask` other ranks for theirs."""
    pending = writer_within(engine, t._ref, PATIENCE if options.sync else 0.0)
    if pending is not None:
        return f"<pending: {pending}>"
    failed = poison_of(engine, t._ref)
    if failed is not None:
        engine.failures.collect()
        failure = engine.failures.by_seq.get(failed)
        if failure is None:
            return f"<failed: instruction #{failed}>"
        if failure.captured:  # nothing went wrong: there is no number yet
            return "<symbolic: a graph is captured; its outputs have values after a call>"
        message = " ".join(str(failure.exception).split())
        message = message if len(message) <= MESSAGE else message[: MESSAGE - 3] + "..."
        kind = type(failure.exception).__name__
        return f"<failed: {kind}: {message}; see flow.vm.last_error()>"
    meta = t._meta
    if is_batched(meta):
        return f"<{meta!r}>"
    if meta.device is nowhere:
        return "..."  # as PyTorch's
    if isinstance(meta, GlobalMeta):
        if not meta.inside:
            return "<on other ranks>"
        return None if ask or (meta.local.shape == meta.shape and not meta.has_partial) else _APART
    if engine.storages.pointer(t._ref) == 0 and meta.numel:
        return "<freed>"
    return None


def _facts(t: Tensor, meta: TensorMeta | None, values_seen: bool, shape_seen: bool) -> list[str]:
    """Return the facts to print behind the values: the ones that the values and defaults do not
    show.
    """
    facts = []
    if meta is None:
        facts.append("shape=unknown")
    else:
        if not shape_seen:
            facts.append(f"shape={tuple(meta.shape)}")
        default = get_default_dtype()
        plain = (default, complex_of(default), int64, bool_) if values_seen else (default,)
        if meta.dtype not in plain:
            facts.append(f"dtype={meta.dtype.name}")
        if isinstance(meta, GlobalMeta):
            facts.append(f"placement={meta.placement!r}")
            facts.append(f"sbp={meta.sbp!r}")
        elif meta.device is not cpu:
            facts.append(f"device='{meta.device}'")
    if t.grad_fn is not None:
        facts.append(f"grad_fn={t.grad_fn!r}")
    elif t.requires_grad:
        facts.append("requires_grad=True")
    return facts


def _in_full(t: Tensor, ask: bool = False, column: int = 0) -> str:
    options, prefix = _options, "tensor("
    margin = column + len(prefix)
    missing = _missing(t, options, ask)
    meta = _known_meta(t) if missing else t._meta
    shape_seen, body = False, missing or "[]"
    if missing is None and t._meta.numel:
        shown = _shown(t, options)
        shape_seen = not shown.cut
        body = _nested(shown.elements.tolist(), tuple(t._meta.shape), margin, shown, options)
    text = prefix + (printable(body) if missing else body)
    used = len(text) - (text.rfind("\n") + 1) + (0 if "\n" in text else column)
    for fact in map(printable, _facts(t, meta, body[0] != "<" and body != "[]", shape_seen)):
        if used + len(fact) + 2 > options.linewidth:
            text += ",\n" + " " * margin + fact
            used = margin + len(fact)
        else:
            text += ", " + fact
            used += len(fact) + 2
    return text + ")"


def text_at(t: Tensor, column: int) -> str:
    """Return a tensor's text as a part of another, in which it begins at a column."""
    return _in_full(t, column=column)


@method("__repr__")
def _repr(t: Tensor) -> str:
    return _written(t, False)


def _written(t: Tensor, ask: bool) -> str:
    if not _is_made(t):
        return "tensor(<not made yet>)"
    try:
        return _in_full(t, ask)
    except Exception as error:  # a debugger shows locals in any state
        return f"tensor(<cannot be shown: {type(error).__name__}: {error}>)"


@method("__str__")
def _str(t: Tensor) -> str:
    """Return the text for `print`: as `repr`, after waiting for the value, however long it
    takes.
    """
    if _is_made(t) and _options.sync:
        while engine.threads.running and writer_within(engine, t._ref, PATIENCE) is not None:
            pass
        if isinstance(t._meta, GlobalMeta):
            return _written(t, True)
    return repr(t)


def _is_made(t: Tensor) -> bool:
    try:
        return t._ref >= 0 and (t._node, t._storage) is not None
    except AttributeError:
        return False


@method("__format__")
def _format(t: Tensor, spec: str) -> str:
    if t._meta.ndim == 0:
        return format(t.item(), spec)
    if spec:
        raise ArgumentTypeError(
            f"the format {spec!r} takes a 0-d tensor, this one has shape {tuple(t.shape)}; "
            f"format its elements, or set flow.set_printoptions(precision=...)"
        )
    return str(t)


@method("__dir__")
def _dir(t: Tensor) -> list[str]:
    names = {*dir(type(t)), *getattr(t, "__dict__", ())}
    return sorted(n for n in names if not n.startswith("_"))


# --- notebooks ------------------------------------------------------------------------------------


@method("_repr_html_")
def _repr_html(t: Tensor) -> str | None:
    try:
        text = _table(t, html.escape)
    except Exception:
        text = None
    return text if text is not None else f"<pre>{html.escape(repr(t))}</pre>"


def _table(t: Tensor, escape: Callable[[str], str]) -> str | None:
    """A vector or matrix as a table under its facts; None where there is no such thing."""
    options = _options
    if _missing(t, options) or t._meta.ndim not in (1, 2) or not t._meta.numel:
        return None
    shown = _shown(t, options)
    facts = [f"shape={tuple(t._meta.shape)}", f"dtype={t._meta.dtype.name}"]
    facts += [f for f in _facts(t, t._meta, True, True) if not f.startswith("dtype=")]
    gaps = [shown.gap(d, options) for d in t._meta.shape]
    edge, rows = options.edgeitems, []
    for values in np.atleast_2d(shown.elements).tolist():
        cells = [escape(shown.text(v)) for v in values]
        if gaps[-1]:
            cells.insert(edge, "…")
        rows.append("<tr>" + "".join(f"<td>{c.strip()}</td>" for c in cells) + "</tr>")
    if len(gaps) == 2 and gaps[0]:
        rows.insert(edge, "<tr><td>⋮</td></tr>")
    caption = escape("tensor: " + ", ".join(facts))
    return f"<table><caption>{caption}</caption>{''.join(rows)}</table>"

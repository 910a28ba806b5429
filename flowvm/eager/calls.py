"""Calls: the Python function that issues an operator, written out in full for its operands.

`_source` is its text: look the metas up in the operator's cache, make the outputs, write the
record, note the autograd node.  It is one piece because it runs once an op: what would be a call
elsewhere is a line in it.  It is in `linecache`, so tracebacks and pdb show it.

It is written when it is first called: most programs call a few of the operators that there are.
Until then the same function, with the same parameters, has a code that has it written; so nothing
stands between a call and it afterwards.

Its globals are `hot` itself, which is how it sees `limit`, `departed` and `counter` change; what
belongs to the operator is in its closure.
"""

from __future__ import annotations

import functools
import linecache
import operator
import struct
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, Protocol

from flowvm.config import config
from flowvm.eager.declaration import Rules, Signature
from flowvm.eager.live import Frozen, Live, freeze
from flowvm.eager.tensor import Storage, Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError
from flowvm.guards.lru_cache import LRUCache
from flowvm.vm.callers.hot import hot, issue_globals
from flowvm.vm.callers.tracebacks import cut
from flowvm.vm.machine.words import CTL, RING

# calls (a power of two, less one) after which dead tensors are released, if none allocates much
KEEP_DEAD = 15


class Callee(Protocol):
    """An operator (`flowvm.eager.interpreter`), as far as its calls depend on it."""

    name: str
    signature: Signature
    grad: Callable[..., object] | None
    saves: tuple[str, ...]
    rules: Rules
    over: Any  # not None: its result goes over its first input, which it reads, too
    lru: LRUCache

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The outputs that have a place in the graph."""


# --- the text ---------------------------------------------------------------------------------


def _source(op: Callee, params: Sequence[str]) -> str:
    """The text; `params` name the inputs, attributes and scalars of a call, in this order."""
    signature = op.signature
    at_attrs = len(signature.inputs)
    at_scalars = at_attrs + len(signature.attrs)
    inputs, named = params[:at_attrs], params[at_scalars:]
    tensors = "".join(f"{n}, " for n in inputs)
    attrs = "".join(f"{n}, " for n in params[at_attrs:at_scalars])
    scalars = "".join(f"{n}, " for n in named)
    key = "".join(f"{n}._meta, " for n in inputs) + attrs
    lines = [
        f"def call({', '.join(params)}):",
        *(_converting_lines(tensors) if op.rules.amp else ()),
        "    _renewed = renewed",
        "    try:",
        f"        _key = ({key})",
        "        _e = cache[_key]",
        "    except (KeyError, AttributeError, TypeError): _e = None",
        "    if _e is None:",  # out here, or an error would say it came while handling a KeyError
        f"        _result = fallback(op, ({tensors}), ({attrs}), ({scalars}))"
        if signature.attrs
        else f"        _result = op.rules.fallback({', '.join(params)})",
        "        if _result is not None: return _result",
        f"        _e = miss(op, ({tensors}), ({attrs}))",
        f"        if _e is globally: return _e(op, ({tensors}), ({attrs}), ({scalars}))",
        "    if _e.large and dead: release_dead()",
    ]
    for i, _ in enumerate(signature.outputs):
        lines += [
            f"    try: _s{i} = pop()",
            f"    except IndexError: _s{i} = refill()",
            f"    _o{i} = new(Tensor); _o{i}._storage = None; _o{i}._ref = _s{i}",
            f"    _o{i}._meta = _e.outputs[{i}]; _o{i}._node = None",
        ]
    outs = "".join(f"_o{i}, " for i in range(len(signature.outputs)))
    operands = [f"_s{i}" for i in range(len(signature.outputs))]
    operands += [f"{n}._ref" for n in (*inputs[: op.over is not None], *inputs)]
    values = [*reversed(named), *reversed(operands), "_word"]
    lines += [  # now, while no sequence number is taken: to convert a tensor is to wait for it
        f"    if {n}.__class__ is not float and {n}.__class__ is not int and "
        f"{n}.__class__ is not bool: {n} = as_number({n})"
        for n in named
    ]
    lines += [
        "    _word = _e.word",
        f"    if departed: _word = depart(op, _e, ({outs}), ({tensors}), ({attrs}), ({scalars}))",
        "    _f = getframe(1); _c = _f.f_code",
        "    if _c.co_filename in user_files: _last = _f.f_lasti",
        "    else: _c, _last = find_user(_f)",
        "    _write = packs[_e.scalar_pack]"
        if signature.scalars and not signature.scalar_kinds
        else "    _write = pack",
        # the entry is for the metas that operands had then: with others they have other places
        "    if renewed is not _renewed and may_repeat(): continue",
        *publishing(values),
    ]
    written = signature.written(inputs)
    lines += [f"    {n}.bump()" for n in written]
    for i, name in enumerate(signature.outputs):
        if name in signature.unsized:
            lines.append(f"    unsized(op, _o{i}, _e.outputs[{i}])")
    if op.grad is not None and signature.inputs:
        lines += _node_lines(op, inputs, attrs + scalars)
    results = [f"_o{i}" for i in range(len(signature.outputs))] or written[:1]
    lines.append(f"    return {', '.join(results)}")
    body = "\n".join("        " + line for line in lines[1:])
    ends = "    except flow_error as _error: cut(_error); raise\n"
    return f"{lines[0]}\n    try:\n        while True:\n{body}\n{ends}"


def _converting_lines(tensors: str) -> list[str]:
    """Ask autocast, where some thread is in a region."""
    return [
        "    if autocast:",
        f"        _t = convert(op, ({tensors}))",
        f"        if _t is not None: {tensors}= _t",
    ]


def publishing(values: Sequence[str], recovery: str = "") -> list[str]:
    """Lines of a generated function that publish a record of these words, the last one first.

    `_write` packs them, with the mark behind; `_c` and `_last` are the user's place; `recovery` is
    a statement without a call for the moment when the sequence number `_seq` is known.

    From the number to the mark the record is being published: the scheduler waits for it, so what
    waits for the scheduler waits for itself.  Nothing is issued, waited for or collected there, and
    only ints, floats and references that are words already are packed.  Where `config.debug_calls`
    is set, `flowvm.vm.callers.publish_check` asserts it.

    Behind a number that was taken there is a record, whatever comes in between: a scalar that no
    word holds, MemoryError, an exception of a signal handler.
    """
    mark = "_seq + 1" if RING.ORDERED_STORES else "0"
    back = (RING.WORDS - len(values) - 1) * 8
    return [
        *(["    none_begun()"] if config.debug_calls else []),
        "    _seq = -1",
        "    try:",
        "        for _seq in counter: break",
        *(["        begun[get_ident()] = _seq"] if config.debug_calls else []),
        *([f"        {recovery}"] if recovery else []),
        f"        _i = _seq & {RING.SLOT_MASK}; codes[_i] = _c; lasts[_i] = _last",
        f"        _write(ring, (_i << 8) + {back}, {', '.join(values)}, {mark})",
        *([] if RING.ORDERED_STORES else ["        publish_mark(_seq)"]),
        # a number that no word holds, or in a debug build an assertion: where the record was to be
        # stands one that does nothing, before anything else may run
        "    except struct_errors as _bad:",
        f"        write_hole(ring, (_i << 8) + {(RING.WORDS - 3) * 8}, 0, hole, {mark})",
        *([] if RING.ORDERED_STORES else ["        publish_mark(_seq)"]),
        "        raise no_word(_bad) from None",
        "    except any_error: fill_hole(_seq); raise",
        *_due_lines(),
    ]


def _due_lines() -> list[str]:
    """Return the lines of work that is due behind record `_seq`, whose slot is `_i`."""
    return [
        f"    if not _i & {KEEP_DEAD} and dead: release_dead()",
        f"    if control[{CTL.SCHEDULER_SLEEPS}]: after()",
        "    if _seq >= limit: make_room(_seq)",
        "    if lent[0]: settle(_seq)",
    ]


def _node_lines(op: Callee, inputs: Sequence[str], attrs: str) -> list[str]:
    signature = op.signature
    needed = " or ".join(f"{n}._node is not None" for n in inputs)
    edges = "".join(f"{n}._node, " for n in inputs)
    metas = "".join(f"_key[{i}], " for i in range(len(inputs)))  # another has others by now
    live = range(len(op.differentiable))
    out_metas = "".join(f"_e.outputs[{i}], " for i in live)
    lines = [f"    if ({needed}) and (not unrecorded or grad_enabled()):"]
    saved, versions = [], []
    for name in op.saves:
        if name in signature.outputs:
            i = signature.outputs.index(name)
            lines.append(
                f"        _st = new(Storage); _st.version = 0; _o{i}._storage = _st; "
                f"_st.id = _s{i}; _a{i} = new(Tensor); "
                f"_a{i}._storage = _st; _a{i}._ref = _s{i}; _a{i}._meta = _e.outputs[{i}]; "
                f"_a{i}._node = None"
            )
            saved.append(f"_a{i}")
            versions.append("0")
        else:
            own = inputs[signature.inputs.index(name)]
            saved.append(own)
            versions.append(f"0 if {own}._storage is None else {own}._storage.version")
    lines.append(
        f"        _node = Node(op, ({edges}), ({''.join(s + ', ' for s in saved)}), "
        f"({''.join(v + ', ' for v in versions)}), ({metas}), ({attrs}), ({out_metas}), _seq)"
    )
    if len(live) == 1:
        lines.append("        _o0._node = _node")
    else:
        lines += [
            f"        if _e.outputs[{i}].dtype.inexact: _o{i}._node = OutputEdge(_node, {i})"
            for i in live
        ]
    return lines


# --- the function -----------------------------------------------------------------------------


def call_function(
    op: Callee, within: dict[str, object] = issue_globals, keywords: Sequence[str] = ()
) -> Callable[..., Any]:
    """The function `call(*inputs, *attrs, *scalars)` that issues `op`, with `within` for globals.

    It gives the op's outputs, or the input that the op writes.  `keywords` are its parameters'
    names, where callers know the operands by other ones than the op.
    """
    signature = op.signature
    params = list(keywords or signature.arguments)
    reserved = {
        n
        for n in params
        if n in issue_globals or n in ("op", "cache", "packs", "pack") or n[:1] == "_" != n
    }
    if reserved:
        raise ArgumentError(
            f"{op.name}: {', '.join(sorted(reserved))} cannot name an argument, because the "
            f"function that issues calls uses that name itself; choose another"
        )
    n_words = len(signature.operands) + len(signature.scalars) + 2 + (op.over is not None)
    own: dict[str, object] = {"op": op, "cache": op.lru.young}
    if signature.scalars and not signature.scalar_kinds:  # as the text has it
        own["packs"] = _Packs(n_words)
    else:
        kinds = signature.scalar_kinds
        own["pack"] = struct.Struct(kinds[::-1] + "q" * (n_words - len(kinds))).pack_into
    call: FunctionType
    if within is not issue_globals:
        call = generated(_source(op, params), f"<flowvm call {op.name}>", own, within)
        call.__name__ = call.__qualname__ = op.name
        return call
    count = len(params)
    call = _unwritten_maker(", ".join(own), count)(**own)
    call.__name__ = call.__qualname__ = op.name
    variables = call.__code__.co_varnames[count:]
    call.__code__ = call.__code__.replace(co_varnames=(*params, *variables))
    _unwritten[id(op)] = call
    return call


_unwritten: weakref.WeakValueDictionary[int, FunctionType] = weakref.WeakValueDictionary()


def _written(op: Callee) -> Callable[..., object]:
    """The function that issues `op`, which is its text's from now on."""
    call: FunctionType = _unwritten[id(op)]
    cells = zip(call.__code__.co_freevars, call.__closure__ or (), strict=True)
    own = {name: cell.cell_contents for name, cell in cells}
    text = _source(op, call.__code__.co_varnames[: call.__code__.co_argcount])
    call.__code__ = generated(text, f"<flowvm call {op.name}>", own).__code__
    return call


def behind_call(call: FunctionType, other: FunctionType) -> None:
    """`other` has the code and the variables of `call`, whose own code is exchanged next: where it
    is not written yet, `other` is who will be.
    """
    own = dict(zip(call.__code__.co_freevars, call.__closure__ or (), strict=True))
    if "op" in own and _unwritten.get(id(own["op"].cell_contents)) is call:
        _unwritten[id(own["op"].cell_contents)] = other


@functools.cache
def _unwritten_maker(own: str, count: int) -> Callable[..., Any]:
    """Makes functions that issue calls with so many parameters, before they are written.  They are
    named by whom it makes: to compile a text for each of an import's operators takes 10 ms.
    """
    params = ", ".join(f"_{i}" for i in range(count))
    text = f"""
def make({own}):
    def call({params}):
        ({own})
        try:
            return written(op)({params})
        except flow_error as _error: cut(_error); raise
    return call
"""
    names: dict[str, Any] = {}
    exec(compile(text, "<flowvm call>", "exec"), issue_globals, names)
    maker: Callable[..., FunctionType] = names["make"]
    return maker


def finish_function(within: dict[str, object] = issue_globals) -> Callable[[int], None]:
    """The function `finish(_seq)` that does what a call does behind its record; for native calls,
    which ask for it when something is due.
    """
    due = [f"    {line}" for line in (f"    _i = _seq & {RING.SLOT_MASK}", *_due_lines())]
    ends = "    except flow_error as _error: cut(_error); raise\n"
    text = "\n".join(["def finish(_seq):", "    try:", *due, ends])
    return generated(text, "<flowvm finish>", {}, within)


class _Packs(dict[str, Callable[..., None]]):
    """Functions that pack a record of `words` words, by the kinds of its scalars; each is made at
    its first use, since n scalars have 2**n combinations of kinds.
    """

    def __init__(self, words: int) -> None:
        self.words = words

    def __missing__(self, kinds: str) -> Callable[..., None]:
        pack = self[kinds] = struct.Struct(kinds + "q" * (self.words - len(kinds))).pack_into
        return pack


def generated(
    source: str, filename: str, own: dict[str, object], within: dict[str, object] = issue_globals
) -> FunctionType:
    """The function that `source` defines; its globals are `within`, `own` is in its closure."""
    name = source[4 : source.index("(")]
    body = "    " + source.rstrip("\n").replace("\n", "\n    ") + "\n"
    source = f"def make({', '.join(own)}):\n{body}    return {name}\n"
    # the name begins with "<flowvm", so that its frames are nobody's lines
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    names: dict[str, Any] = {}
    exec(_from_file(_compiled(source), filename), within, names)
    function: FunctionType = names["make"](**own)
    return function


@functools.cache
def _compiled(source: str) -> CodeType:
    """Many operators look alike, and compiling is most of what declaring one costs."""
    return compile(source, "<flowvm call>", "exec")


def _from_file(code: CodeType, filename: str) -> CodeType:
    """`code`, and the functions in it, as if it had been compiled from `filename`."""
    consts = [_from_file(c, filename) if isinstance(c, CodeType) else c for c in code.co_consts]
    return code.replace(co_filename=filename, co_consts=tuple(consts))


def _number(value: Any) -> Any:
    """A call's number as Python's own."""
    if isinstance(value, (Live, Frozen)):
        return freeze(value)
    if isinstance(value, Tensor):
        return value.item()
    try:
        return operator.index(value)
    except TypeError:
        if isinstance(value, str):
            raise ArgumentTypeError(f"a number is needed, got str ({value!r})") from None
        return float(value)


hot.update(
    {
        "new": object.__new__,
        "Tensor": Tensor,
        "Storage": Storage,
        "as_number": _number,
        "flow_error": FlowError,
        "cut": cut,
        "written": _written,
    }
)

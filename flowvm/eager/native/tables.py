"""The tables of a process: what the words of SHARED and SITE are."""

from __future__ import annotations

import ctypes
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowvm.eager.call_entry import CallEntry
from flowvm.eager.calls import Callee, finish_function
from flowvm.eager.native.words import (
    BOOLEAN,
    CACHE,
    FLOATING,
    MOST_KEY,
    MOST_OUTPUTS,
    MOST_SAVED,
    MOST_SCALARS,
    MOST_WRITTEN,
    SHARED,
    SIGNED,
    SITE,
    SLOT,
)
from flowvm.eager.nodes import OutputEdge
from flowvm.eager.tensor import forget_gone, renewals
from flowvm.errors import FlowError
from flowvm.guards.lru_cache import clearings
from flowvm.guards.regions import _Entry
from flowvm.meta import dtype as dtypes
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Size, TensorMeta
from flowvm.private.cpython import getrefcount
from flowvm.private.objects import (
    class_place,
    counter_place,
    file_name_place,
    slice_places,
    slot_place,
)
from flowvm.vm.callers.lines import Backward
from flowvm.vm.machine.record import Record, fields_of
from flowvm.vm.machine.words import RING

_SLOTS = {
    "Tensor": ("_extra", "_kin", "_meta", "_node", "_ref", "_storage"),
    "Storage": ("id", "version"),
    "Loan": ("id", "storage"),
    "Node": (
        "attrs", "edges", "metas", "operator", "out_metas", "_saved", "seq", "versions",
    ),
}  # fmt: skip


# in the keys of traces: for True and False, as 1 is another; around the parts of lists
# and tuples, in front of those of slices
YES, NO = object(), object()
OPEN_LIST, OPEN_TUPLE, CLOSE, SLICED = object(), object(), object(), object()


# of the dtypes that native calls read
CODES: dict[DType, int] = {
    getattr(dtypes, name): code
    for name, code in {
        "bool_": 1 | BOOLEAN,
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int8": 1 | SIGNED,
        "int16": 2 | SIGNED,
        "int32": 4 | SIGNED,
        "int64": 8 | SIGNED,
        "float32": 4 | FLOATING,
        "float64": 8 | FLOATING,
    }.items()
}


# of the dtypes of arrays that native calls make
ARRAYS: dict[DType, tuple[np.dtype[np.generic], int]] = {
    dtype: (dtype.storage, dtype.itemsize)
    for dtype in dtypes.ALL_DTYPES
    if dtype is not dtypes.bfloat16
}


def _equality(itemsize: int, size: int, infinity: int = 0) -> tuple[int, int, int, int]:
    """Return the facts of a dtype that equality needs: the bytes of an element and of its numbers;
    a word with their sign bits, and one with what is to be added to their other bits to get a sign
    bit for NaN alone.  The last two are 0 for integers.
    """
    sign = 1 << 8 * size - 1
    words = (sign, sign - 1 - infinity) if infinity else (0, 0)
    signs, spare = (
        int.from_bytes(w.to_bytes(size, "little") * (8 // size), "little", signed=True)
        for w in words
    )
    return itemsize, size, signs, spare


_INFINITIES = {
    dtypes.float16: 0x7C00,
    dtypes.bfloat16: 0x7F80,
    dtypes.float32: 0x7F80_0000,
    dtypes.float64: 0x7FF0_0000_0000_0000,
}
# of the dtypes that native calls compare; a complex number is two
EQUALS: dict[DType, tuple[int, int, int, int]] = {
    dtype: _equality(dtype.itemsize, dtype.real.itemsize, _INFINITIES.get(dtype.real, 0))
    for dtype in dtypes.ALL_DTYPES
}


class Several(tuple[int, ...]):
    """The words of a field that has several."""


class Table:
    """A record filled in, with numbers and with addresses of objects: `words` is a ctypes array,
    `references` what its addresses are of.
    """

    def __init__(
        self, kind: type[Record], references: object, more: Sequence[int] = (), /, **values: object
    ) -> None:
        fields = {field.name: field for field in fields_of(kind)}
        size = sum(field.words for field in fields.values())
        self.words = (ctypes.c_int64 * (size + len(more)))()
        self.words[size:] = list(more)  # what lies behind the record
        self.references = references, values
        for name, value in values.items():
            parts = value if type(value) is Several else (value,)
            for k, part in enumerate(parts):
                self.words[fields[name].at + k] = part if type(part) is int else id(part)

    @property
    def address(self) -> int:
        """The address of the table's words."""
        return ctypes.addressof(self.words)


def shared_table(names: dict[str, Any]) -> Table:
    """SHARED, of what the globals of generated calls are: `names`."""
    places: dict[str, int] = {"TYPE_AT": class_place(), "FILENAME_AT": file_name_place()}
    for kind, slots in _SLOTS.items():
        for slot in slots:
            key = f"{kind}_{slot.strip('_')}".upper()
            places[key] = slot_place(names[kind], slot)
    for slot in ("keep", "owner", "value"):
        places[f"ENTRY_{slot.upper()}"] = slot_place(_Entry, slot)
    for slot in ("large", "outputs", "word"):
        places[f"CALL_{slot.upper()}"] = slot_place(CallEntry, slot)
    places["CALL_PACK"] = slot_place(CallEntry, "scalar_pack")
    for slot in ("index", "node"):
        places[f"EDGE_{slot.upper()}"] = slot_place(OutputEdge, slot)
    for slot in ("code", "last"):
        places[f"BACKWARD_{slot.upper()}"] = slot_place(Backward, slot)
    leaf = names.get("AccumulateGrad")
    for slot in ("after", "hooks", "tensor"):
        places[f"LEAF_{slot.upper()}"] = 0 if leaf is None else slot_place(leaf, slot)
    places["COUNTER_AT"] = counter_place()
    for slot in ("device", "dtype", "ndim", "numel", "shape", "stride"):
        places[f"META_{slot.upper()}"] = slot_place(TensorMeta, slot)
    for part, place in zip(("START", "STOP", "STEP"), slice_places(), strict=True):
        places[f"SLICE_{part}"] = place
    ring, control = (_address(names[name]) for name in ("ring", "control"))
    if len(names["codes"]) != RING.SLOTS or len(names["lasts"]) != RING.SLOTS:
        raise ValueError("codes and lasts have a place for each record")
    return Table(
        SHARED,
        names,
        **places,
        TENSOR=names["Tensor"],
        PARAMETER=names.get("Parameter", 0),
        STORAGE=names["Storage"],
        LOAN=names["Loan"],
        ARRAY=np.ndarray,
        NODE=names["Node"],
        OUTPUT_EDGE=names["OutputEdge"],
        LEAF=leaf or 0,
        GRAD_NAME="grad",
        GETREFCOUNT=getrefcount,
        FITTED=names.get("fitted", 0),
        ARRIVE=names.get("arrive", 0),
        NO_GRAPH=False,
        FALSE=False,
        CPU=cpu,
        THROUGH=_through,
        STARTED=names.get("started", 0),
        BACKWARD=Backward,
        BACKWARD_RUN=names.get("BackwardRun", 0),
        GO_ON=names.get("go_on", 0),
        EXPLAIN=names.get("explain", 0),
        ADD=names.get("add_in_place", 0),
        EDGES_NAME="edges",
        FORWARD_NAME="forward",
        HOOKS_NAME="_hooks",
        EXCEPTION=Exception,
        FLOW_ERROR=FlowError,
        COUNTER=itertools.count,
        SLICE=slice,
        TUPLE=tuple,
        SIZE=Size,
        STR=str,
        TYPE=type,
        META=TensorMeta,
        DTYPE=DType,
        ELLIPSIS=...,
        OPEN_LIST=OPEN_LIST,
        OPEN_TUPLE=OPEN_TUPLE,
        CLOSE=CLOSE,
        SLICED=SLICED,
        COPY=_copy,
        YES=YES,
        NO=NO,
        NEW_TUPLE=_new_tuple,
        PRUNE=forget_gone,
        FLOAT=float,
        INT=int,
        BOOL=bool,
        LIST=list,
        DICT=dict,
        DEFAULT_DICT=defaultdict,
        ENTRY=_Entry,
        NONE=None,
        KEY_ERROR=KeyError,
        ATTRIBUTE_ERROR=AttributeError,
        TYPE_ERROR=TypeError,
        HOT=names,
        COUNTER_NAME="counter",
        LIMIT_NAME="limit",
        CLEARED=ctypes.addressof(clearings),
        RENEWALS=ctypes.addressof(renewals),
        RING=ring,
        CONTROL=control,
        POP=names["pop"],
        DEAD=names["dead"],
        RELEASES=names["releases"],
        ADOPTED=names["adopted"],
        STREAM_OF=names["stream_of"],
        LENT=names["lent_at"],
        CODES=names["codes"],
        LASTS=names["lasts"],
        DEPARTED=names["departed"],
        AUTOCAST=names["autocast"],
        UNRECORDED=names["unrecorded"],
        ASKERS=names["askers"],
        GRAD_ENABLED=names["grad_enabled"],
        USER_FILES=names["user_files"],
        INTERNAL=names["internal_files"],
        TRUE=True,
        FIND_USER=names["find_user"],
        PINNED=names["pinned"],
        USER_LINES=names["user_lines"],
        ENTRIES_NAME="entries",
        RECORDING=names["recording"],
        RECORDED=names["Recording"],
        FORGET=names["FORGET"],
        RELEASE=names["release_dead"],
        FINISH=finish_function(names),
    )


def _address(view: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


_new_tuple = tuple.__new__


def _copy(x: Any, source: object) -> object:
    """A method that is declared later."""
    return x.copy_(source)


def _through(function: Callable[..., object], *args: object) -> object:
    """Call a function from here: what it issues is then the line's that is pinned, or the first
    above that is a user's, and not that of the frame that called a native call.
    """
    return function(*args)


def takes(op: Callee) -> bool:
    """Return True if there are native calls of an operator: with outputs whose sizes are known; or
    with tensors that it writes, and neither an output nor a gradient.
    """
    signature = op.signature
    if signature.writes:
        known = not signature.outputs and op.grad is None and len(signature.writes) <= MOST_WRITTEN
    else:
        known = 0 < len(signature.outputs) <= MOST_OUTPUTS and not signature.unsized
        known = known and len(op.saves) <= MOST_SAVED
    operands = len(signature.operands) + len(signature.scalars) + (op.over is not None)
    known = known and len(signature.inputs) + len(signature.attrs) <= MOST_KEY
    known = known and len(signature.scalars) <= MOST_SCALARS
    return known and operands <= RING.MAX_INLINE


def inline_cache_table(count: int) -> Table:
    """CACHE, with so many SLOTs."""
    more = [0] * (count * SLOT.WORDS)
    return Table(CACHE, None, more, CLEARED=-1, COUNT=count, HELD=[None] * count)


def site_table(
    op: Callee,
    twin: Callable[..., object],
    shared: Table,
    numbered: Table | None = None,
    converted: bool = False,
) -> Table:
    """SITE, of an operator that `takes` says yes of; of others one by which each call is a miss.

    `twin` is called then; `converted`: in a region of autocast, too.
    """
    signature = op.signature
    has_kernel = takes(op)
    arguments = len(signature.arguments) if has_kernel else -1
    saves = op.saves if has_kernel else ()
    saved = Several(
        signature.inputs.index(n) if n in signature.inputs else -1 - signature.outputs.index(n)
        for n in saves
    )
    written = Several(
        k for k, n in enumerate(signature.inputs) if has_kernel and n in signature.writes
    )
    inline = inline_cache_table(4)
    return Table(
        SITE,
        (shared, numbered, inline),
        SHARED=shared.address,
        INLINE_CACHE=inline.address,
        TWIN=twin,
        CACHE=op.lru.young,
        ARGUMENTS=arguments,
        OUTPUTS=len(signature.outputs),
        LIVE=len(op.differentiable),
        INPUTS=len(signature.inputs),
        ATTRS=len(signature.attrs),
        SCALARS=len(signature.scalars),
        KINDS=signature.scalar_kinds or 0,
        CODES=Several(map(ord, signature.scalar_kinds if has_kernel else "")),
        CONVERTED=int(converted or bool(op.rules.amp)),
        OPERATOR=op if op.grad is not None else 0,
        SAVES=len(saved),
        SAVED=saved,
        OVER=int(op.over is not None),
        WRITES=len(written),
        WRITTEN=written,
        NUMBERED=0 if numbered is None else numbered.address,
    )

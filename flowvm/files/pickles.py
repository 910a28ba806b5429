"""PyTorch's files, read without running their code: a pickle machine of one table.

A pickle is a program that may call anything.  This machine knows the opcodes that plain containers
and tensors need, and these names alone; every other name, opcode or size ends the reading:

    collections.OrderedDict, collections.defaultdict (with no factory but dict, list, int, float)
    torch._utils._rebuild_tensor(_v2), _rebuild_parameter, torch.*Storage, torch.<dtype>,
    torch.Size, torch.device, torch.serialization._get_layout, numpy numbers

Nothing is imported for a name and nothing is called for one but functions of this file, so loading
never runs code.  Two formats: a zip with data.pkl and data/<key> (since PyTorch 1.6), and five
pickles in a row with storages behind them.  Sizes are held against the file before memory is taken,
keys and the whole value against `flowvm.files.bounds`.  A storage is read once, and all tensors on
it share it, as they did when they were saved.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from flowvm.eager.tensor import Tensor, alias
from flowvm.eager.values import adopt_array
from flowvm.errors import FileError, FlowError
from flowvm.files.bounds import MOST_DEPTH as MOST_NESTED
from flowvm.files.bounds import Bounds, check_shape, check_tree
from flowvm.files.printable import cropped, printable
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device
from flowvm.meta.dtype import MINIFLOATS, DType, dtype_named
from flowvm.meta.meta import Size, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.meta.dtype import DTypeLike
    from flowvm.ops.sparse import conversion as sparse_conversion
else:
    sparse_conversion = lazy("flowvm.ops.sparse.conversion")

_STORAGES: Final = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "UntypedStorage": "uint8",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_DTYPES: Final = {
    "float64": "float64", "double": "float64", "float32": "float32", "float": "float32",
    "float16": "float16", "half": "float16", "bfloat16": "bfloat16", "int64": "int64",
    "long": "int64", "int32": "int32", "int": "int32", "int16": "int16", "int8": "int8",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "bool",
    "complex64": "complex64", "cfloat": "complex64",
    "complex128": "complex128", "cdouble": "complex128",
    **{dtype.name: dtype.name for dtype in MINIFLOATS},
}  # fmt: skip
# exceptions of zipfile for an archive with wrong bytes
_BROKEN: Final = (
    LookupError, ValueError, OverflowError, zipfile.BadZipFile, OSError, EOFError, RuntimeError,
    MemoryError, struct.error, zlib.error,
)  # fmt: skip
_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
MOST_DEPTH: Final = 10000  # values on the stack
MOST_DIMS: Final = 64
MOST_TIMES: Final = 100  # how often a storage's elements may be in a tensor
MOST_REPEATED: Final = 1 << 24  # elements that a tensor may have all the same
MOST_STEPS: Final = 1 << 24  # opcodes


class _Dtype(NamedTuple):
    """A name of torch that is a dtype, or a storage's."""

    name: str


def _requiring(value: object, requires_grad: object = False) -> object:
    """Return a tensor of a file, which requires gradients if it did there."""
    if requires_grad is True and isinstance(value, Tensor) and value.dtype.inexact:
        value.requires_grad_()
    return value


class _Storage(NamedTuple):
    """A storage that a persistent id names: bytes by key, as elements of a dtype."""

    key: str
    dtype: str
    size: int


class _Call(NamedTuple):
    """A name that may be called, and the function of this module that it calls."""

    name: str
    run: Callable[..., object]


class _Mark:
    """The beginning of a list of arguments on the stack."""


class Reader:
    """The reader of one file with pickles."""

    def __init__(
        self, where: str, nbytes: int, bytes_of: Callable[[_Storage], Array], device: Device
    ) -> None:
        self.where, self.bytes_of, self.device = where, bytes_of, device
        self.bounds = Bounds(self.refusal, nbytes)
        self._storages: dict[str, Tensor] = {}  # by key: all bytes of it

    def refusal(self, why: str) -> FileError:
        """Return the exception to raise about the file."""
        damaged = why.startswith(("is damaged", "is cut short"))
        advice = "; copy it once more from where it came" if damaged else ""
        return FileError(f"flow.load: {self.where} {why}{advice}")

    # --- names ----------------------------------------------------------------------------------

    def find(self, module: str, name: str) -> Any:
        """Return the object that a name of the pickle stands for."""
        if module == "torch":
            if name in _STORAGES:
                return _Dtype(_STORAGES[name])
            if name in _DTYPES:
                return dtype_named(_DTYPES[name])
            if name == "Size":
                return _Call(name, self._size)
            if name == "device":
                return _Call(name, lambda kind="cpu", index=None: self._text(kind))
        if module == "torch.storage" and name in _STORAGES:
            return _Dtype(_STORAGES[name])
        known: dict[tuple[str, str], Callable[..., object]] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_tensor"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self._tensor_of_bytes,
            ("torch._utils", "_rebuild_sparse_tensor"): self._sparse,
            ("torch.serialization", "_get_layout"): lambda name: self._text(name),
            ("torch._utils", "_rebuild_parameter"): lambda data, grad, hooks: _requiring(
                data, grad
            ),
            ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *rest: _requiring(
                data, *rest[:1]
            ),
            ("torch._tensor", "_rebuild_from_type_v2"): lambda make, kind, args, state: self._call(
                make, args
            ),
            ("torch.nn.parameter", "Parameter"): lambda data=None, grad=True: _requiring(
                data, grad
            ),
            ("collections", "OrderedDict"): lambda items=(): self._filled(OrderedDict(), items),
            ("collections", "defaultdict"): lambda factory=None, items=(): self._filled(
                defaultdict(None), items
            ),
            ("numpy", "dtype"): lambda kind, *rest: _Dtype(self._text(kind)),
            ("numpy.core.multiarray", "scalar"): self._number,
            ("numpy._core.multiarray", "scalar"): self._number,
            ("_codecs", "encode"): lambda text, coding: self._text(text).encode("latin1"),
            ("builtins", "set"): self._set,
            ("__builtin__", "set"): self._set,
        }
        if (module, name) in known:
            return _Call(f"{module}.{name}", known[module, name])
        if module in ("builtins", "__builtin__") and name in ("dict", "list", "int", "float"):
            return _Dtype(name)  # a factory of a defaultdict, which is not called
        if (module, name) == ("torch.optim", "required"):
            return None
        raise self.refusal(
            f"names {cropped(f'{module}.{name}')}, which is not a part of a state dict: flowvm "
            "reads "
            f"tensors, numbers, texts and containers of them, and runs nothing of a file; save "
            f"model.state_dict() instead of the model"
        )

    def _text(self, value: object) -> str:
        if type(value) is not str:
            raise self.refusal("is damaged: a value that must be a text is not one")
        self.bounds.copies(value)
        return value

    def _size(self, items: Any = ()) -> Size:
        if not _plain(items) or len(items) > MOST_DIMS or not all(type(n) is int for n in items):
            raise self.refusal("is damaged: a torch.Size has no sizes")
        return Size(items)

    def _filled(self, target: Any, items: object) -> Any:
        """A dict with items: another dict's, or pairs."""
        pairs = list(self.bounds.copies(items).items()) if isinstance(items, dict) else items
        if not isinstance(pairs, (list, tuple)):
            raise self.refusal("is damaged: a dict is made of something other than items")
        for pair in self.bounds.copies(pairs):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise self.refusal("is damaged: a dict is made of something other than items")
            self.bounds.put(target, *pair)
        return target

    def _set(self, items: object = ()) -> set[object]:
        if not isinstance(items, (list, tuple, set)):
            raise self.refusal("is damaged: a set is made of something other than items")
        elements: set[object] = set()
        for item in self.bounds.copies(items):
            self.bounds.add(elements, item)
        return elements

    def _number(self, kind: object, data: bytes = b"") -> object:
        codes = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1")
        if not isinstance(kind, _Dtype) or kind.name.lstrip("<|=") not in codes:
            raise self.refusal("has a number of a kind that flowvm does not read")
        dtype = np.dtype("<" + kind.name.lstrip("<|="))
        if type(data) is not bytes or len(data) != dtype.itemsize:
            raise self.refusal("is damaged: a number has another size")
        return np.frombuffer(data, dtype)[0].item()

    def _tensor(
        self, storage: _Storage, offset: Any, shape: Any, stride: Any, *rest: object
    ) -> Tensor:
        if not isinstance(storage, _Storage):
            raise self.refusal("is damaged: a tensor has no storage")
        if not _plain(shape) or not _plain(stride) or max(len(shape), len(stride)) > MOST_DIMS:
            raise self.refusal("is damaged: a tensor's shape or stride is not a tuple of sizes")
        if not all(type(n) is int and 0 <= n < 1 << 48 for n in (offset, *shape, *stride)):
            raise self.refusal("is damaged: a tensor's shape or stride is not a tuple of sizes")
        if len(shape) != len(stride):
            raise self.refusal("is damaged: a tensor's shape and stride differ in length")
        dtype = dtype_named(storage.dtype)
        count = check_shape(shape, dtype.itemsize, self.refusal) // dtype.itemsize
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        if last >= storage.size if count else offset > storage.size:
            raise self.refusal("is damaged: a tensor reaches beyond its storage")
        if count > max(MOST_TIMES * storage.size, MOST_REPEATED):
            raise self.refusal(
                f"has a tensor with {MOST_TIMES} times its storage's elements; save "
                f"its storage's values alone"
            )
        meta = TensorMeta.of(tuple(shape), dtype, self.device, tuple(stride))
        tensor = alias(self._bytes(storage), meta, offset * dtype.itemsize)
        _requiring(tensor, bool(rest) and rest[0] is True)
        return tensor

    def _sparse(self, layout: object, data: object) -> Tensor:
        """Return a sparse tensor of its parts."""
        name = self._text(layout).removeprefix("torch.")
        coo = name == "sparse_coo"
        if type(data) is not tuple or len(data) not in ((3, 4) if coo else (4,)):
            raise self.refusal("is damaged: a sparse tensor has the wrong number of parts")
        parts, shape = (data[:2], data[2]) if coo else (data[:3], data[3])
        coalesced = not coo or (len(data) > 3 and data[3] is True)
        if not all(isinstance(part, Tensor) for part in parts):
            raise self.refusal("is damaged: a sparse tensor's parts are not tensors")
        tensor: Tensor = sparse_conversion.of_parts(name, parts, shape, coalesced)
        return tensor

    def _tensor_of_bytes(
        self,
        storage: object,
        offset: object,
        shape: object,
        stride: object,
        grad: object,
        hooks: object,
        dtype: DTypeLike,
    ) -> Tensor:
        """Return a tensor whose storage does not name the dtype of its bytes: uint16 and its
        kin.
        """
        if not isinstance(storage, _Storage) or not isinstance(dtype, DType):
            raise self.refusal("is damaged: a tensor lacks its storage or its dtype")
        if storage.dtype != "uint8" or storage.size % dtype.itemsize:
            raise self.refusal("is damaged: a storage's bytes are not whole elements of its tensor")
        typed = _Storage(storage.key, dtype.name, storage.size // dtype.itemsize)
        return self._tensor(typed, offset, shape, stride, grad)

    def _bytes(self, storage: _Storage) -> Tensor:
        """Return a whole storage, as bytes, which every tensor on it shares."""
        storage_bytes = self._storages.get(storage.key)
        expected = storage.size * dtype_named(storage.dtype).itemsize
        if storage_bytes is None:
            raw = self.bytes_of(storage)
            if raw.nbytes == expected:
                storage_bytes = adopt_array(np.array(raw)).to(self.device)
                self._storages[storage.key] = storage_bytes
        have = raw.nbytes if storage_bytes is None else storage_bytes.numel()
        if storage_bytes is None or have != expected:
            raise self.refusal(
                f"is damaged: storage {cropped(storage.key)} has {have} bytes and not {expected}"
            )
        return storage_bytes

    def _persistent(self, reference: object) -> _Storage:
        if type(reference) is not tuple or len(reference) < 5 or reference[0] != "storage":
            raise self.refusal("is damaged: a persistent id is not a storage")
        _, kind, key, _place, size = reference[:5]
        if not isinstance(kind, _Dtype) or type(key) is not str or type(size) is not int:
            raise self.refusal("is damaged: a storage's description has the wrong form")
        if kind.name not in _STORAGES.values() or not 0 <= size < 1 << 48:
            raise self.refusal("is damaged: a storage's description has the wrong form")
        if len(reference) > 5 and reference[5] is not None:
            raise self.refusal("has a view of a storage; save it again with PyTorch 1.6 or newer")
        return _Storage(key, kind.name, size)

    def _call(self, function: object, args: object) -> object:
        if not isinstance(function, _Call) or type(args) is not tuple:
            raise self.refusal("calls a function: flowvm runs nothing of a file")
        try:
            return function.run(*args)
        except FileError:
            raise
        except (TypeError, ValueError, OverflowError, MemoryError, FlowError):
            raise self.refusal(f"is damaged: {function.name} of other arguments") from None

    # --- the machine ----------------------------------------------------------------------------

    def read(self, file: io.BytesIO) -> Any:
        """The value of the pickle that begins here."""
        value = _Machine(self, file).run()
        check_tree(value, self.refusal)
        return value


class _Machine:
    """One pickle's stack and memo."""

    def __init__(self, reader: Reader, file: io.BytesIO) -> None:
        self.reader, self.file = reader, file
        self.nbytes = file.getbuffer().nbytes
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        # by id, tuples that hold tuples, with how deep they are nested: they are kept, so ids stay
        self.nested: dict[int, tuple[int, tuple[object, ...]]] = {}

    def take(self, n: int) -> bytes:
        data = self.file.read(n) if n <= self.nbytes else b""
        if len(data) != n:
            raise self.reader.refusal("is cut short: a pickle ends in the middle")
        return data

    def line(self) -> str:
        data = self.file.readline(4096)
        if not data.endswith(b"\n"):
            raise self.reader.refusal("is damaged: a line of a pickle has no end")
        return data[:-1].decode("utf-8", "replace")

    def pop(self) -> object:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise self.reader.refusal("is damaged: a pickle's stack is empty")
        return self.stack.pop()

    def to_mark(self) -> list[object]:
        for place in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[place], _Mark):
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise self.reader.refusal("is damaged: a pickle has no mark")

    def run(self) -> object:
        step_on = self.reader.bounds.step
        for _ in range(MOST_STEPS):
            step_on()
            code = self.take(1)
            if code == b".":
                return self.pop()
            step = _STEPS.get(code)
            if step is None:
                raise self.reader.refusal(
                    f"has the pickle opcode {code!r}, which tensors and containers do not need"
                )
            try:
                step(self)
            except (UnicodeDecodeError, struct.error, RecursionError) as error:
                raise self.reader.refusal(f"is damaged: {error}") from None
            if len(self.stack) > MOST_DEPTH + MOST_STEPS // 16:
                raise self.reader.refusal("is damaged: a pickle's stack has no end")
        raise self.reader.refusal("is damaged: a pickle has no end")

    def sized(self, width: str) -> bytes:
        """Read a count and then as many bytes.  A count beyond the end of the file is an error."""
        (n,) = struct.unpack("<" + width, self.take(struct.calcsize("<" + width)))
        return self.take(n)

    def keep(self, place: int) -> None:
        if not self.stack:
            raise self.reader.refusal("is damaged: a pickle's stack is empty")
        self.memo[place] = self.stack[-1]

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise self.reader.refusal(
                "is damaged: a pickle refers to a value that it did not store"
            )
        self.stack.append(self.memo[place])

    def into(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise self.reader.refusal(
                "is damaged: a pickle adds items to a value that is not a container"
            )
        return self.stack[-1]

    def items(self, items: list[object]) -> None:
        target, put = self.into(dict), self.reader.bounds.put
        if len(items) % 2:
            raise self.reader.refusal("is damaged: a dict has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            put(target, key, value)

    def build(self) -> None:
        """BUILD: an OrderedDict's attributes (a state dict's _metadata) are left out."""
        self.pop()
        if not isinstance(self.stack[-1] if self.stack else None, (dict, Tensor, _Dtype)):
            raise self.reader.refusal(
                "gives attributes to what may have none: nothing of a file is run"
            )

    def name(self) -> None:
        module, name = self.line(), self.line()
        self.stack.append(self.reader.find(module, name))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise self.reader.refusal("is damaged: a name is not a text")
        self.stack.append(self.reader.find(module, name))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        self.stack.append(self.reader._call(function, args))

    def number(self, data: bytes) -> None:
        self.stack.append(int.from_bytes(data, "little", signed=True))

    def dict_of(self, items: list[object]) -> None:
        self.stack.append({})
        self.items(items)

    def tuple_of(self, n: int) -> None:
        self.push_tuple([self.pop() for _ in range(n)][::-1])

    def push_tuple(self, items: Sequence[object]) -> None:
        """Push a tuple, unless it is nested too deep.  Tuples are never filled later, so the depth
        is known.
        """
        result, depth, nested = tuple(items), 0, self.nested
        for item in items:
            if item.__class__ is tuple:
                depth = max(depth, 1 + nested[id(item)][0] if id(item) in nested else 1)
        if depth:
            nested[id(result)] = depth, result
            if depth > MOST_NESTED:
                raise self.reader.refusal(f"has tuples nested more than {MOST_NESTED} deep")
        self.stack.append(result)

    def add(self, value: object) -> None:
        self.into(list).append(value)

    def set_items(self) -> None:
        items, target = self.to_mark(), self.into(set)
        for item in items:
            self.reader.bounds.add(target, item)


def _ints(machine: _Machine, code: str) -> int:
    number: int = struct.unpack("<" + code, machine.take(struct.calcsize("<" + code)))[0]
    return number


def _push(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


def _text_number(machine: _Machine) -> int:
    line = machine.line()
    if line in ("00", "01"):
        return line == "01"
    try:
        return int(line.rstrip("L"))
    except ValueError:
        raise machine.reader.refusal("is damaged: a number cannot be read") from None


def _utf8(machine: _Machine, width: str) -> str:
    return machine.sized(width).decode("utf-8", "surrogatepass")


_STEPS: Final[dict[bytes, Callable[[_Machine], object]]] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": _push(lambda m: _Mark()),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.to_mark(),
    b"N": _push(lambda m: None),
    b"\x88": _push(lambda m: True),
    b"\x89": _push(lambda m: False),
    b"I": _push(_text_number),
    b"L": _push(_text_number),
    b"J": _push(lambda m: _ints(m, "i")),
    b"K": _push(lambda m: _ints(m, "B")),
    b"M": _push(lambda m: _ints(m, "H")),
    b"\x8a": lambda m: m.number(m.sized("B")),
    b"G": _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    b"X": _push(lambda m: _utf8(m, "I")),
    b"\x8c": _push(lambda m: _utf8(m, "B")),
    b"\x8d": _push(lambda m: _utf8(m, "Q")),
    b"U": _push(lambda m: m.sized("B").decode("latin1")),
    b"T": _push(lambda m: m.sized("I").decode("latin1")),
    b"B": _push(lambda m: m.sized("I")),
    b"C": _push(lambda m: m.sized("B")),
    b"}": _push(lambda m: {}),
    b"]": _push(lambda m: []),
    b")": _push(lambda m: ()),
    b"\x8f": _push(lambda m: set()),
    b"\x90": lambda m: m.set_items(),
    b"t": lambda m: m.push_tuple(m.to_mark()),
    b"l": lambda m: m.stack.append(list(m.to_mark())),
    b"d": lambda m: m.dict_of(m.to_mark()),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"a": lambda m: m.add(m.pop()),
    b"e": lambda m: (lambda items: m.into(list).extend(items))(m.to_mark()),
    b"s": lambda m: (lambda value, key: m.items([key, value]))(m.pop(), m.pop()),
    b"u": lambda m: m.items(m.to_mark()),
    b"q": lambda m: m.keep(_ints(m, "B")),
    b"r": lambda m: m.keep(_ints(m, "I")),
    b"\x94": lambda m: m.keep(len(m.memo)),
    b"h": lambda m: m.recall(_ints(m, "B")),
    b"j": lambda m: m.recall(_ints(m, "I")),
    b"c": lambda m: m.name(),
    b"\x93": lambda m: m.stack_name(),
    b"R": lambda m: m.call(),
    b"\x81": lambda m: m.call(),  # NEWOBJ: of names that are calls here, the same
    b"b": lambda m: m.build(),
    b"Q": _push(lambda m: m.reader._persistent(m.pop())),
}


def _plain(value: object) -> bool:
    return type(value) in (tuple, list, Size)


# --- files ----------------------------------------------------------------------------------------


def read_zip(data: bytes, where: str, device: Device) -> Any:
    """The object in a zip that torch.save wrote, with its tensors on a device.  FileError for any
    other.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        names = archive.namelist()
    except _BROKEN as error:
        raise FileError(f"flow.load: {where} is damaged: {printable(str(error))}") from None
    if sum(info.file_size for info in archive.infolist()) > len(data):
        raise FileError(f"flow.load: {where} is damaged: its entries are larger than the file")
    mains = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if len(mains) != 1:
        raise FileError(f"flow.load: {where} is a zip, and none that torch.save wrote")
    folder = mains[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in names or any(n.startswith(f"{folder}code/") for n in names):
        raise FileError(
            f"flow.load: {where} is a TorchScript file, which holds code: flowvm runs nothing of a "
            f"file; save its state_dict with PyTorch"
        )

    def content(name: str) -> bytes:
        try:
            info = archive.getinfo(name)
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                raise FileError(f"flow.load: {where} is damaged: {cropped(name)} is compressed")
            return archive.read(info)
        except FileError:
            raise
        except _BROKEN as error:
            raise FileError(f"flow.load: {where} is damaged: {printable(str(error))}") from None

    if f"{folder}byteorder" in names and content(f"{folder}byteorder") != b"little":
        raise FileError(f"flow.load: {where} was written big-endian, which is not read")
    main = content(mains[0])
    reader = Reader(
        where,
        len(main),
        lambda storage: np.frombuffer(content(f"{folder}data/{storage.key}"), np.uint8),
        device,
    )
    return reader.read(io.BytesIO(main))


def read_legacy(data: bytes, where: str, device: Device) -> Any:
    """The object in a file of pickles that PyTorch before 1.6 wrote, with its tensors on a device.
    FileError for others.
    """
    file = io.BytesIO(data)
    storages: dict[str, Array] = {}

    def stored_array(storage: _Storage) -> Array:
        if storage.key not in storages:  # which the pickles in front of the objects have none of
            raise reader.refusal("is damaged: a tensor's storage is missing")
        return storages[storage.key]

    reader = Reader(where, len(data), stored_array, device)
    if reader.read(file) != _MAGIC or reader.read(file) != _PROTOCOL:
        raise reader.refusal(
            "is a pickle, and none that torch.save wrote: pickles run code, so flowvm opens no "
            "other"
        )
    system = reader.read(file)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise reader.refusal("was written big-endian, which is not read")
    start = file.tell()
    sizes: dict[str, _Storage] = {}
    scout = Reader(where, len(data), lambda storage: np.zeros(0, np.uint8), device)

    def noted(storage: object, *rest: object) -> object:
        if not isinstance(storage, _Storage):
            raise reader.refusal("is damaged: a tensor has no storage")
        return sizes.setdefault(storage.key, storage)

    scout._tensor = noted  # type: ignore[method-assign, assignment]
    scout.read(file)
    keys = scout.read(file)
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise reader.refusal("is damaged: its list of storages has the wrong form")
    for key in keys:
        (count,) = struct.unpack("<q", _exactly(file, 8, reader))
        kind = sizes[key].dtype if key in sizes else "uint8"
        width = dtype_named(kind).itemsize
        if not 0 <= count <= len(data):
            raise reader.refusal("is damaged: a storage is larger than the file")
        storages[key] = np.frombuffer(_exactly(file, count * width, reader), np.uint8)
    if set(sizes) - set(storages):
        raise reader.refusal("is damaged: a tensor's storage is missing")
    file.seek(start)
    return reader.read(file)


def _exactly(file: io.BytesIO, n: int, reader: Reader) -> bytes:
    data = file.read(n)
    if len(data) != n:
        raise reader.refusal("is cut short")
    return data

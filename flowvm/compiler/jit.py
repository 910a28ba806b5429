"""Native code from Python functions, and a cache of it that is read without importing Numba.

`native` turns a plain Python function into a C function and returns its address.  Numba only types
and lowers; linking, optimization, code generation and loading are done here with llvmlite, because
Numba's own path optimizes every module twice, adds wrappers that nobody calls, and has an on-disk
cache that cannot be read without importing Numba.

Guarantees
- The address of a function lives as long as the process.
- Compiled and loaded code are the same bytes: a fresh kernel goes through the same object file as a
  cached one.
- A cache entry is used only if its checksum is right and every symbol it needs exists here;
  otherwise it is compiled anew.  Entries are written under a temporary name and renamed, so any
  number of processes may share the folder.  It is a folder that nobody else may write, or none
  (`flowvm.compiler.cache`).
- Compiled code never needs Python, the GIL or Numba's runtime: what would is refused when it is
  compiled, by name. An exception that compiled code raises becomes the return value -1 (all bits
  set).

`flowvm.compiler.native` says which functions may be compiled, and turns them into LLVM's modules;
`flowvm.compiler.dependencies` says what a key covers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.util
import json
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flowvm.compiler import cache, record
from flowvm.compiler.dependencies import source_key
from flowvm.compiler.native import LoweredFunction, lower
from flowvm.compiler.progress import compiling
from flowvm.compiler.target import Target, level, levels_here, target
from flowvm.config import config, say
from flowvm.errors import ArgumentError, CompileError
from flowvm.files.schema import read_json, several, text
from flowvm.files.schema import record as fields
from flowvm.guards.apart import apart
from flowvm.guards.collection import Uncollected, settle
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.loading.lazy import lazy
from flowvm.private.llvmlite import free_passes, mend_calls
from flowvm.private.numba import NUMBA

# none of these comes with flowvm
waterfall = lazy("flowvm.compiler.waterfall")
words = lazy("flowvm.compiler.words")
llvm = lazy("llvmlite.binding")  # with the first kernel that is made or loaded
metadata = lazy("importlib.metadata")

SCHEMA = 1  # of cache entries and of the code made here; raise it when either changes meaning
PRUNE_EVERY = 128  # compilations after which the size of the cache is looked at
USED_AFTER = 86400  # seconds after which an entry that is read is marked as used again
SHIPPED = Path(__file__).parents[1] / "objects"  # the object files of a wheel, a folder a level
_MAGIC = b"flowvm.o"
_DIGEST = hashlib.sha256().digest_size


class Stats(NamedTuple):
    """The work of this process so far: numbers of functions compiled and loaded, and the seconds it
    took.
    """

    compiled: int
    loaded: int
    compile_seconds: float
    load_seconds: float


class Lowered(NamedTuple):
    """LLVM modules of one program, and the name of its C function."""

    modules: list[Any]
    entry: str
    inline: frozenset[str] = frozenset()  # functions inlined whatever their size
    loops_only: bool = False  # a few simple loops: skip the passes that find nothing there
    written: tuple[object, ...] = ()  # modules written as they are to run: no passes at all


# --- public functions -----------------------------------------------------------------------

_lock = held_at_fork(threading.RLock(), Rank.COMPILER)  # guards all module state below
_addresses: dict[str, int] = {}
_counts = {"compiled": 0, "loaded": 0, "compile_seconds": 0.0, "load_seconds": 0.0}
# called with the name and the start (`time.monotonic_ns`) of a function just compiled or loaded
listeners: list[Callable[[str, int], None]] = []
# False: `BlockingIOError` is raised where another process compiles the function at hand
patient = True


def native(
    function: Callable[..., object],
    signature: str,
    *,
    facts: object = (),
    reassociate: bool = False,
) -> int:
    """Return the address of a C function that does the work of `function`, a plain Python function.

    `signature` is Numba's ("int32(uint64, int64)").  `facts` are facts that the code depends on and
    no source names: of this machine, or of this process.  `reassociate` lets LLVM reorder sums,
    which vectorizes them and changes their rounding.
    """

    return load(_maker(function, signature, reassociate), function.__qualname__, facts)


def _maker(
    function: Callable[..., object], signature: str, reassociate: bool
) -> Callable[[], Lowered]:
    def make() -> Lowered:
        if function.__globals__.get("WORDS_ONLY"):
            return Lowered(*words.lowered(function, signature))
        with record.phase(record.NUMBA):
            args, result = NUMBA.normalize_signature(signature)
        return c_function(lower(function, args, result, reassociate=reassociate, simplified=True))

    return make


def native_if_cached(
    function: Callable[..., object],
    signature: str,
    *,
    facts: object = (),
    folder: Path | None = None,
) -> int | None:
    """Return the address that `native` would return, if nothing has to be compiled for it; else
    None.  `folder` is used instead of the cache's folder.
    """
    return load_if_cached(_maker(function, signature, False), function.__qualname__, facts, folder)


def load_if_cached(
    make: Callable[[], Lowered], name: str, facts: object = (), folder: Path | None = None
) -> int | None:
    """Return the address that `load` would return, if nothing has to be compiled for it; else
    None.  `folder` is used instead of the cache's folder.
    """
    key = _key(make, facts)
    address = _addresses.get(key)
    return apart(_load, key, None, name, folder) if address is None else address


def load(make: Callable[[], Lowered], name: str, facts: object = ()) -> int:
    """Return the address of the C function of `make()`.  `make` is called only if the cache lacks
    the function.

    The cache has it if nothing that `make` reaches has changed, its closure included, nor any of
    `facts`.  `name` is its name for FLOWVM_DEBUG=1.
    """
    key = _key(make, facts)
    address = _addresses.get(key)
    if address is None:
        begun = time.monotonic_ns()
        loaded = apart(_load, key, make, name)
        assert loaded is not None, "what is not kept was made"
        address = loaded
        for listener in listeners:
            listener(name, begun)
    return address


def _key(make: Callable[[], Lowered], facts: object) -> str:
    with Uncollected():  # a collection in the first keys takes longer than they do
        return f"{_own_key()}\n{source_key(make, facts)}"


@functools.cache
def _own_key() -> str:
    return apart(lambda: _machine_key(target()))


def _load(
    key: str, make: Callable[[], Lowered] | None, name: str, folder: Path | None = None
) -> int | None:
    """Return the address of the function with this key: loaded, or compiled if `make` is given."""
    with _lock:
        if (address := _addresses.get(key)) is None:
            digest = _digest(key)
            address = _from_cache(digest, folder or cache_dir())
            if address is None and folder is None:
                address = _from_wheel(key.removeprefix(_own_key()))
            if address is None:
                if make is None:
                    return None
                if sys.meta_path is None:
                    raise CompileError(
                        f"{name} was not compiled before, and Python is ending: it imports nothing "
                        "any more.  Let what a __del__ computes be computed once before that, or "
                        "in an atexit function"
                    )
                address = _compile(digest, make, name)
            _addresses[key] = address
        return address


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def stats() -> Stats:
    """Return the numbers of functions compiled and loaded, and the seconds it took."""
    with _lock:
        return Stats(**_counts)  # type: ignore[arg-type]


# --- cache entries: MAGIC, sha256 of the rest, a line of JSON, the object file ----------------

_folder: Path | None = None
_HEAD = fields(imports=several(text(1000), 10_000))


def cache_dir() -> Path:
    """The folder of cached code.

    What `set_cache_dir` said, else `config.cache_dir`.
    """
    return config.cache_dir if _folder is None else _folder


def set_cache_dir(path: str | os.PathLike[str] | None) -> None:
    """Use `path` for cached code from now on; None goes back to `config.cache_dir`."""
    global _folder
    _folder = None if path is None else Path(path)


def _from_cache(digest: str, folder: Path) -> int | None:
    address = _loaded(digest, folder, cache.is_own)
    if address is not None:
        _mark_used(folder / f"{digest}.o")
    return address


def _from_wheel(program: str) -> int | None:
    """Return the address of a function that came with flowvm, for the highest level of this
    processor.  `program` is its key without the machine's part.
    """
    for folder, machine in _shipped():
        address = _loaded(_digest(machine + program), folder, cache.is_flowvms)
        if address is not None:
            return address
    return None


@functools.cache
def _shipped() -> list[tuple[Path, str]]:
    """(Folder, key of the machine) of the levels that are in this wheel and that run here."""
    if config.target or not SHIPPED.is_dir():
        return []
    levels = [(SHIPPED / name, level(name)) for name in levels_here()]
    return [(folder, _machine_key(of)) for folder, of in levels if folder.is_dir()]


def _loaded(digest: str, folder: Path, trusted: Callable[[os.stat_result], bool]) -> int | None:
    """Return the address of an entry's function; None if there is no entry, or its bytes were
    changed.
    """
    start = time.perf_counter()
    data = cache.read(folder, f"{digest}.o", trusted)
    if data is None:
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    checksum = hashlib.sha256(body).digest()
    if data[: len(_MAGIC) + _DIGEST] != _MAGIC + checksum:
        _debug("cache entry %s is damaged; compiling it again", digest)
        return None
    head, _, code = body.partition(b"\n")
    try:
        facts = read_json(head, f"cache entry {digest}")
        _HEAD(facts, f"cache entry {digest}")
    except ArgumentError as error:
        _debug("cache entry %s is damaged (%s); compiling it again", digest, error)
        return None
    if _symbol(digest).encode() not in code:
        _debug("cache entry %s is another's; compiling it again", digest)
        return None
    if missing := [name for name in facts["imports"] if not _symbol_exists(name)]:
        _debug("cache entry %s needs %s, not found here", digest, missing)
        return None
    address = _load_object(digest, code)
    _counts["loaded"] += 1
    _counts["load_seconds"] += time.perf_counter() - start
    return address


def _to_cache(digest: str, code: bytes, imports: list[str]) -> None:
    body = json.dumps({"imports": imports}).encode() + b"\n" + code
    folder = cache_dir()
    try:
        cache.write(folder, f"{digest}.o", _MAGIC + hashlib.sha256(body).digest() + body)
    except OSError as error:
        _cannot_write(folder, error)
        return
    if _counts["compiled"] % PRUNE_EVERY == 0:
        prune(folder, config.cache_bytes)


def _mark_used(path: Path) -> None:
    """Set the modification time of an entry that is read, to the day, so that unused entries are
    the older ones.
    """
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > USED_AFTER:
            os.utime(path)


def prune(folder: Path, limit: int) -> int:
    """Remove the entries of `folder` that were not used for longest until a quarter of `limit`
    bytes is free; the number removed.

    Do nothing below `limit`, nor in a folder that is not this user's.  Code that another process
    has loaded stays loaded.
    """
    if cache.trouble(folder):
        return 0
    entries = [
        (status.st_mtime, status.st_size, path)
        for path, status in cache.files(folder)
        if path.suffix in (".o", ".tmp", ".lock")
    ]
    total, removed = sum(size for _, size, _ in entries), 0
    if total <= limit:
        return 0
    for _, size, path in sorted(entries):
        if total <= limit - limit // 4:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed, total = removed + 1, total - size
    say(1, f"removed {removed} of {len(entries)} cached kernels that were not used for longest")
    return removed


@functools.cache
def _warned(folder: Path) -> list[str]:
    return []


def _cannot_write(folder: Path, error: OSError) -> None:
    if not _warned(folder):
        _warned(folder).append("said")
        _debug("cannot write to the cache %s (%s); code is kept in memory only", folder, error)


# --- keys -----------------------------------------------------------------------------------


@functools.cache
def _machine_key(of: Target) -> str:
    """Return all facts besides the program on which the bytes of an object file depend."""
    parts = [
        str(SCHEMA),
        ".".join(map(str, sys.version_info[:2])),
        sys.implementation.name,
        platform.machine(),
        *map(_version, ("numba", "llvmlite", "numpy")),
        *of,
        source_key(_object),
    ]
    return "\n".join(parts)


# --- LLVM: one target machine and one engine for everything -----------------------------------


@functools.cache
def _target_machine(optimized: int) -> Any:
    """A target machine as Numba makes it: absolute addresses and the large code model on x86."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_default_triple()
    return triple.create_target_machine(
        cpu=target().cpu,
        features=target().features,
        opt=optimized,
        reloc="static" if triple.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def _engine() -> Any:
    mend_calls()  # its objects may be collected on any thread from now on
    llvm.load_library_permanently("libm.so.6" if sys.platform == "linux" else "")
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _engine_machine())


@functools.cache
def _engine_machine() -> Any:
    # MCJIT takes its target machine over, so it gets one that nothing else uses.
    return _target_machine.__wrapped__(3)


def _load_object(digest: str, code: bytes) -> int:
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = int(engine.get_function_address(_symbol(digest)))
    if not address:
        raise CompileError(f"object file {digest} defines no function of its name")
    return address


def _symbol(digest: str) -> str:
    return f"flowvm_{digest}"


_provided: dict[str, int] = {}


def provide(name: str, address: int) -> None:
    """Let native code that is compiled or loaded later call the function at `address` by `name`."""
    apart(_provide, name, address)


def _provide(name: str, address: int) -> None:
    mend_calls()
    with _lock:
        llvm.add_symbol(name, address)
        _provided[name] = address


@functools.cache
def _process() -> list[ctypes.CDLL]:
    libraries = [ctypes.CDLL(None)]
    for name in ("libm.so.6",) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # its symbols are then reported as missing, by name
            libraries.append(ctypes.CDLL(name))
    return libraries


def _symbol_exists(name: str) -> bool:
    return name in _provided or any(hasattr(library, name) for library in _process())


def _compile(digest: str, make: Callable[[], Lowered], name: str) -> int:
    began = time.monotonic()
    if config.debug >= 1:
        waterfall.at_exit()
    with (
        compiling(name) as whole,
        Uncollected(),  # typing makes many objects that live: to look them over takes a tenth
        record.phases() as seconds,
        cache.alone(cache_dir(), digest, waiting=patient) as others,
    ):
        waited = time.monotonic() - began if others else 0.0
        kernel = _from_cache(digest, cache_dir()) if others else None
        if kernel is None:
            with record.phase(record.FRONT):
                lowered = make()
            module, imports, code = _object(lowered, _symbol(digest))
            _to_cache(digest, code, imports)
            with record.phase(record.LOAD):
                address = _load_object(digest, code)
                gc.collect(0)  # the garbage of typing
                settle()  # or soon everything would be looked over, and Numba alone is 0.1 s
    record.write(cache_dir(), whole, digest, began, waited, seconds)
    if kernel is not None:
        return kernel  # by another process, meanwhile
    _counts["compiled"] += 1
    passed = time.monotonic() - began
    _counts["compile_seconds"] += passed
    say(1, f"compiled {name} in {passed * 1e3:.0f} ms")
    if config.debug >= 4:
        say(4, f"LLVM code of {name}:\n{module}")
    return address


def _object(lowered: Lowered, symbol: str) -> tuple[object, list[str], bytes]:
    """The whole module, the symbols that it imports, and its object file."""
    mend_calls()
    with record.phase(record.LINK):
        module = _linked(lowered, symbol, lambda linked: _optimize(linked, lowered.loops_only))
        imports = _imports(module)
    with record.phase(record.CODE):
        return module, imports, _target_machine(3).emit_object(module)


def _linked(
    lowered: Lowered, symbol: str, optimize: Callable[[object], None] = lambda module: None
) -> Any:
    """Link all modules to one, whose entry is called `symbol`.  `optimize` is called with it before
    the parts are added that must run as they are written.
    """
    module = llvm.parse_assembly(_NO_RUNTIME if lowered.modules else "")
    module.triple = _target_machine(3).triple  # as Numba's modules, of which there may be none
    module.data_layout = str(_target_machine(3).target_data)
    if lowered.modules:
        _link(module, lowered.modules, lowered)
        optimize(module)
    _link(module, lowered.written, lowered)
    module.get_function(lowered.entry).name = symbol
    return module


def _link(module: Any, parts: Iterable[object], lowered: Lowered) -> None:
    """Link parts of a program into one module.  Only its entry stays visible from outside."""
    for part in parts:
        module.link_in(part, preserve=True)
    for item in [*module.functions, *module.global_variables]:
        if item.is_declaration:
            continue
        if item.name == lowered.entry:
            item.linkage = "external"
        else:
            item.linkage = "internal"
            if item.name in lowered.inline:
                item.add_function_attribute("alwaysinline")


# Kernels own no memory of Numba's, so counting references does nothing.
_NO_RUNTIME = """
define linkonce_odr void @NRT_incref(ptr %p) alwaysinline { ret void }
define linkonce_odr void @NRT_decref(ptr %p) alwaysinline { ret void }
"""


@record.phase(record.PASSES)
def _optimize(module: object, loops_only: bool) -> None:
    machine = _target_machine(3)
    options = llvm.create_pipeline_tuning_options(speed_level=2 if loops_only else 3)
    options.loop_vectorization = True
    options.slp_vectorization = not loops_only
    options.loop_unrolling = not loops_only  # interleaving replaces unrolling
    builder = llvm.create_pass_builder(machine, options)
    manager = builder.getModulePassManager()
    manager.run(module, builder)
    free_passes(manager)


def _imports(module: Any) -> list[str]:
    """Return the symbols that the module takes from the process; none may be Numba's or
    Python's.
    """
    items = [*module.functions, *module.global_variables]
    names = sorted(i.name for i in items if i.is_declaration and not i.name.startswith("llvm."))
    foreign = [n for n in names if n.startswith(("NRT_", "numba_", "Py", "_Py"))]
    missing = [n for n in names if n not in foreign and not _symbol_exists(n)]
    if foreign:
        raise CompileError(
            "native code may not use Numba's runtime or Python, but this needs "
            f"{', '.join(foreign)}: allocate no arrays, build no strings, lists or exceptions "
            "with arguments in it"
        )
    if missing:
        raise CompileError(f"native code needs {', '.join(missing)}, which this process lacks")
    return names


def linked(function: LoweredFunction, text: str, *, loops_only: bool = False) -> Lowered:
    """`function` under LLVM `text` that calls it and defines @entry, the C function."""
    inline = function.helpers | {function.name}
    return Lowered([*function.modules, llvm.parse_assembly(text)], "entry", inline, loops_only)


def c_function(lowered: LoweredFunction) -> Lowered:
    """A C function around Numba's calling convention."""
    from numba import types

    void = isinstance(lowered.result, types.NoneType)
    params = ", ".join(f"{t} %a{i}" for i, t in enumerate(lowered.args_ir))
    passed = "".join(f", {t} %a{i}" for i, t in enumerate(lowered.args_ir))
    declared = "".join(f", {t}" for t in lowered.args_ir)
    returns = lowered.result_ir
    failure = "" if returns == "float" or returns == "double" else "-1"
    end = "ret void" if void else f"%v = load {returns}, ptr %r\n  ret {returns} %v"
    bad = "ret void" if void else f"ret {returns} {failure or '0x7FF8000000000000'}"
    text = f"""
declare i32 @"{lowered.name}"(ptr, ptr{declared})
define {"void" if void else returns} @entry({params}) {{
  %r = alloca {"ptr" if void else returns}
  %e = alloca ptr
  %s = call i32 @"{lowered.name}"(ptr %r, ptr %e{passed})
  %done = icmp eq i32 %s, 0
  %none = icmp eq i32 %s, -2
  %ok = or i1 %done, %none
  br i1 %ok, label %good, label %bad
good:
  {end}
bad:
  {bad}
}}
"""
    return linked(lowered, text)


def _version(package: str) -> str:
    """Return the version of an installed distribution.  The folder of its metadata, beside the
    package, has it in its name (the Python packaging guide's "recording installed projects").

    importlib.metadata, which imports a parser of e-mails, is asked where that is not so.
    """
    spec = importlib.util.find_spec(package)
    beside = Path(spec.origin).parent.parent if spec is not None and spec.origin else Path()
    versions = [path.stem for path in beside.glob(f"{package}-*.dist-info")]
    if len(versions) != 1:
        return str(metadata.version(package))
    return versions[0].removeprefix(f"{package}-")


def _debug(text: str, *args: object) -> None:
    logging.getLogger("flowvm.compiler.jit").debug(text, *args)

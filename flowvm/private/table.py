"""Tables of private names: each with its purpose, its tested versions, and a check that it exists.

A `Package` is such a table.  Its names are looked up at the first use, `NUMBA.cgutils`, and then
cached.  A missing name raises an error with the package, its version, and the versions that have
the name.

A *shortcut* is flowvm's code in the place of the package's own, for speed alone.  It is used only
if the replaced code is, to the letter, the tested one; else `usable` leaves it out, with one
warning for all.  Compiled code is equal with and without it.

`report` says of every name how it stands, for `flowvm doctor`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flowvm.errors import CompileError, FlowError
from flowvm.loading.lazy import lazy

metadata = lazy("importlib.metadata")  # and with it, e-mail's parser

OK, SKIPPED, MISSING = "ok", "skipped", "missing"


class Use(NamedTuple):
    """A private name: its place `where` ("module" or "module:attribute.attribute") and its
    purpose.  `holds` lists the attributes in use of the object there.

    A shortcut has `replaces`, the functions whose meaning it relies on, and `sources`, the digests
    (`digest_of`) of all their texts with a known equal meaning.  A `probe` returns the reason why
    the object does not work as expected, or ""; `prepare` is called before the look-up.
    """

    name: str
    where: str
    needed_for: str
    holds: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    probe: Callable[[], str] | None = None
    prepare: Callable[[], object] | None = None
    optional: bool = False

    @property
    def shortcut(self) -> bool:
        """True if flowvm works without this name."""
        return self.optional or bool(self.replaces)


class Standing(NamedTuple):
    """The state of a use: OK, SKIPPED or MISSING, and the reason."""

    use: Use
    verdict: str
    why: str


class Package:
    """The private names of one package, which are its attributes.

    `distribution` is the package's name for installers, `tested` the tested versions, oldest
    first.  `error` is raised for a missing name.
    """

    def __init__(
        self,
        distribution: str,
        tested: tuple[str, ...],
        uses: tuple[Use, ...],
        *,
        error: type[FlowError] = CompileError,
        version: Callable[[], str] | None = None,
    ) -> None:
        self.distribution, self.tested, self.error = distribution, tested, error
        self.uses = {use.name: use for use in uses}
        self._version = version
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Forget the results of all look-ups."""
        for name in self.uses:
            vars(self).pop(name, None)
        self._usable: frozenset[str] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.uses:
            raise AttributeError(
                f"{name!r} is not a private name of {self.distribution} that is used"
            )
        use = self.uses[name]
        target, why = self._look(use)
        if why:
            raise self.error(
                f"{use.where}, which {use.needed_for}, is not what it was: {why}.  Here is "
                f"{self.distribution} {self.version}; flowvm was tested with {self.versions}: "
                f"install one of those"
            )
        vars(self)[name] = target  # where it is found without coming here
        return target

    def jit_parts(self) -> tuple[str]:
        """Return the part of a key of compiled code: see `flowvm.compiler.dependencies`."""
        return (self._digest,)

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(repr([use[:4] for use in self.uses.values()]).encode()).hexdigest()

    @property
    def version(self) -> str:
        """The installed version."""
        if self._version is not None:
            return self._version()
        try:
            return str(metadata.version(self.distribution))
        except metadata.PackageNotFoundError:
            return "not installed"

    @property
    def versions(self) -> str:
        """The tested versions, as text."""
        first, *rest = self.tested
        return f"{first} to {rest[-1]}" if rest else first

    def require(self, *names: str) -> None:
        """Raise the error if one of the names is gone; all of them are checked."""
        for name in names:
            getattr(self, name)

    def usable(self, name: str) -> bool:
        """Return True if the shortcut `name` may be used.  The first question checks all of them,
        and warns if some may not be used.
        """
        with self._lock:
            if self._usable is None:
                bad = [s for s in self.report(shortcuts=True) if s.verdict != OK]
                self._usable = frozenset(self.uses) - {s.use.name for s in bad}
                if bad:
                    listed = "; ".join(f"{s.use.name} ({s.why})" for s in bad)
                    warnings.warn(
                        f"flowvm does without {len(bad)} of its shortcuts through "
                        f"{self.distribution} {self.version}, which it does not know (tested: "
                        f"{self.versions}); results are the same, kernels take longer to compile: "
                        f"{listed}",
                        RuntimeWarning,
                        stacklevel=3,
                    )
        return name in self._usable

    def report(self, shortcuts: bool = False) -> Iterator[Standing]:
        """Yield the state of every use, or of every shortcut."""
        for use in self.uses.values():
            if use.shortcut or not shortcuts:
                why = self._look(use)[1]
                yield Standing(use, (SKIPPED if use.shortcut else MISSING) if why else OK, why)

    def _look(self, use: Use) -> tuple[object, str]:
        """Return the object of `use`, and the reason why it cannot be used, or ""."""
        try:
            if use.prepare is not None:
                use.prepare()
            place = found_at(use.where) if use.where else None
            missing = [name for name in use.holds if not _holds(place, name)]
            if missing:
                return None, f"it has no {', '.join(missing)}"
            if use.replaces and digest_of(use.replaces) not in use.sources:
                return None, f"{', '.join(use.replaces)} reads otherwise"
            return place, use.probe() if use.probe is not None else ""
        except (MemoryError, RecursionError):
            raise  # a later look may find it
        except Exception as error:  # a module that is imported may raise anything
            return None, f"{type(error).__name__}: {error}"


def found_at(where: str) -> Any:
    """Return the object that "module:attribute.attribute" names."""
    module, _, path = where.partition(":")
    value = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        value = getattr(value, part)
    return value


def _holds(value: object, name: str) -> bool:
    """Return True if an object, or a class's instances, have the attribute `name`.  It exists, or
    the class's `__init__` names it.
    """
    if hasattr(value, name):
        return True
    begins = [vars(kind).get("__init__") for kind in getattr(value, "__mro__", ())]
    return any(name in f.__code__.co_names for f in begins if inspect.isfunction(f))


def digest_of(functions: tuple[str, ...]) -> str:
    """A digest of the source texts of functions, each named as `found_at` takes it."""
    texts = [inspect.getsource(inspect.unwrap(found_at(where))) for where in functions]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:16]

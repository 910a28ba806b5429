"""The processor for which code is made: this one, or a level of its family, which many processors
have.

A kernel that is compiled at its first use is made for the processor that uses it.  Code in a wheel
is made for a level of x86-64 or of ARM (`FLOWVM_TARGET`), and every processor of it runs it.
Vectors are as wide as the target's registers.

Source of the levels: x86-64 psABI, "Micro-Architecture Levels".
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
from typing import NamedTuple

from flowvm.compiler import cache
from flowvm.compiler.versions import version_of
from flowvm.config import config
from flowvm.errors import ArgumentError, ConfigError
from flowvm.files.schema import read_json, record, text
from flowvm.loading.lazy import lazy

llvm = lazy("llvmlite.binding")  # where no process before this one has asked it

_V2 = ("sse2", "cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
ARMV8 = "armv8-a"  # every processor of aarch64
# the highest first
LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2, ARMV8: ("fp-armv8", "neon")}


class Target(NamedTuple):
    """A processor as LLVM names it: "znver4", "+avx2,-avx512f,..."."""

    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        """Return True if the target has this feature ("avx2")."""
        return f"+{feature}" in self.features.split(",")


# what Linux says of a processor of x86-64 that LLVM's answer depends on
_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags")
_ANSWER = record(cpu=text(100), features=text(100_000))
_DIGITS = 64  # of a sha256


@functools.cache
def host() -> Target:
    """Return this processor; without features where LLVM cannot tell them.

    LLVM's answer is a file of the cache, and so its library is not needed where all kernels are
    in the cache.
    """
    facts = _facts()
    name = f"{hashlib.sha256(facts).hexdigest()[:40]}.cpu"
    answer = _stored(name) if facts else None
    if answer is None:
        answer = _from_llvm()
        if facts:
            body = json.dumps(answer._asdict()).encode()
            with contextlib.suppress(OSError):
                cache.write(config.cache_dir, name, _digest(body) + body)
    return Target(answer.cpu, _whole_registers(answer.features))


def _from_llvm() -> Target:
    """Return this processor as LLVM names it."""
    try:
        features = str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:
        features = ""
    return Target(str(llvm.get_host_cpu_name()), features)


def _stored(name: str) -> Target | None:
    """The answer in a file of the cache; None if there is none, or its bytes were changed."""
    data = cache.read(config.cache_dir, name) or b""
    body = data[_DIGITS:]
    if not body or data[:_DIGITS] != _digest(body):
        return None
    try:
        answer = read_json(body, name)
        _ANSWER(answer, name)
    except ArgumentError:
        return None
    return Target(**answer)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _facts() -> bytes:
    """The facts on which LLVM's answer depends, with its version; empty where Linux does not say
    them.
    """
    by_name: dict[str, bytes] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        for line in file:
            name, _, fact = line.partition(b":")
            if not fact:  # of other processors follow
                break
            by_name[name.strip().decode()] = fact.strip()
    if "flags" not in by_name or "vendor_id" not in by_name:
        return b""
    version = version_of("llvmlite").encode()
    return b"\n".join([version, *(by_name.get(name, b"") for name in _FACTS)])


@functools.cache
def level(name: str) -> Target:
    """The least processor of a level."""
    cpu = "generic" if name == ARMV8 else name  # as LLVM calls it
    return Target(cpu, _whole_registers(",".join(f"+{feature}" for feature in LEVELS[name])))


def _whole_registers(features: str) -> str:
    """Return these features, and vectors of 512 bits in loops where there are such registers.

    LLVM takes half of a register for many Intel processors and for x86-64-v4, as the first ones
    with AVX-512 ran at a lower clock then.
    """
    wide = "+avx512f" in features.split(",")
    return f"{features},-prefer-256-bit" if wide else features


def levels_here() -> list[str]:
    """The levels whose code this processor runs, the highest first."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return [ARMV8]  # LLVM need not name what all of them have
    if machine not in ("x86_64", "amd64"):
        return []
    names = [name for name in LEVELS if name != ARMV8]
    return [name for name in names if all(map(host().has, LEVELS[name]))]


@functools.cache
def target() -> Target:
    """Return the target for which this process compiles.

    ConfigError where FLOWVM_TARGET is a level that this processor does not have.
    """
    if not config.target:
        return host()
    if config.target not in levels_here():
        raise ConfigError(
            f"FLOWVM_TARGET={config.target} cannot be run here: this processor has "
            f"{', '.join(levels_here()) or 'none of the levels'}"
        )
    return level(config.target)

"""The processor for which code is made: this one, or a level of its family, which many processors
have.

A kernel that is compiled at its first use is made for the processor that uses it.  Code in a wheel
is made for a level of x86-64 or of ARM (`FLOWVM_TARGET`), and every processor of it runs it.
Vectors are as wide as the target's registers.

Source of the levels: x86-64 psABI, "Micro-Architecture Levels".
"""

from __future__ import annotations

import functools
import platform
from typing import NamedTuple

from flowvm.config import config
from flowvm.errors import ConfigError
from flowvm.loading.lazy import lazy

llvm = lazy("llvmlite.binding")

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


@functools.cache
def host() -> Target:
    """This processor; without features where LLVM cannot tell them."""
    try:
        features = str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:
        features = ""
    return Target(str(llvm.get_host_cpu_name()), _whole_registers(features))


@functools.cache
def level(name: str) -> Target:
    """The least processor of a level."""
    cpu = "generic" if name == ARMV8 else name  # as LLVM calls it
    return Target(cpu, _whole_registers(",".join(f"+{feature}" for feature in LEVELS[name])))


def _whole_registers(features: str) -> str:
    """These features, and vectors of 512 bits in loops where there are such registers.

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

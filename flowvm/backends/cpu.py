"""`flow.backends.cpu`: the CPU's capabilities."""

import platform

from flowvm.compiler.target import host
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def get_cpu_capability() -> str:
    """PyTorch's word for the widest vectors of this CPU: "AVX512", "AVX2" or "DEFAULT"."""
    has = host().has
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "DEFAULT"
    if has("avx512f") and has("avx512bw"):
        return "AVX512"
    return "AVX2" if has("avx2") else "DEFAULT"


__all__ = own_names(globals())

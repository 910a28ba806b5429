"""Versions of installed packages, found without an import of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flowvm.loading.lazy import lazy

metadata = lazy("importlib.metadata")


def version_of(package: str) -> str:
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

"""`flow.hub`: flowvm downloads nothing and runs no code from elsewhere; its functions raise errors.

Weights that were downloaded otherwise are read by `flow.load`, PyTorch's files too; code is
installed by pip.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlparse as urlparse

from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

_folder: list[str] = []
# the beginning of a file's SHA-256 in its name, as in resnet18-f37072fd.pth
HASH_REGEX: Final = re.compile(r"-([a-f0-9]*)\.")


def _refuse(what: str, where: str) -> NoReturn:
    raise ArgumentError(
        f"flow.hub.{what}({where!r}): flowvm downloads nothing and runs no code of a repository; "
        f"install the package, or fetch the file yourself and read it with flow.load(path)"
    )


def get_dir() -> str:
    """Return the folder of programs' weights: $FLOWVM_HUB, or ~/.cache/flowvm/hub."""
    default = os.environ.get("FLOWVM_HUB") or Path.home() / ".cache" / "flowvm" / "hub"
    return _folder[0] if _folder else str(default)


def _get_torch_home() -> str:
    return os.path.dirname(get_dir())


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set the folder that get_dir returns."""
    _folder[:] = [os.fspath(d)]


def load(repo_or_dir: str, model: str, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: no code of a repository is run."""
    _refuse("load", repo_or_dir)


def help(github: str, model: str, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: no code of a repository is run."""
    _refuse("help", github)


def list(github: str, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: no code of a repository is run."""
    _refuse("list", github)


def load_state_dict_from_url(url: str, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: nothing is downloaded."""
    _refuse("load_state_dict_from_url", url)


def download_url_to_file(url: str, dst: str, *args: object, **kwargs: object) -> NoReturn:
    """Raise ArgumentError: nothing is downloaded."""
    _refuse("download_url_to_file", url)


_download_url_to_file = download_url_to_file

__all__ = own_names(globals())

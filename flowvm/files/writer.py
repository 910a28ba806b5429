"""Files written for users: this is the only module that writes them.

A regular file is replaced in one step: the new one is written beside it and moved over it, so a
crash leaves the old one or the new one, whole.  It keeps the old one's permissions and owner.  A
symbolic link stays one, and the file that it points to is replaced.  All else that a path may name
(a device, a pipe, a socket, a descriptor of this process such as /dev/stdout) is opened and written
through, as `open` does.  So is a file that cannot be replaced: in a folder that takes no new file,
mounted by itself, or of an owner who could not be kept.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from typing import IO, Any, Final

from flowvm.errors import ArgumentTypeError

_MOST_LINKS: Final = 40  # that are followed, as Linux does
_DESCRIPTOR: Final = re.compile(r"/proc/(?P<pid>\d+)(?:/task/\d+)?/fd/(?P<fd>\d+)")
_KERNEL: Final = ("/dev/", "/proc/", "/sys/")  # no file is made beside files in these folders
_MEMORY: Final = "/dev/shm/"  # but here
# errors that say: no file is made, moved or given away here
_FIXED: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}


@contextlib.contextmanager
def writing(
    target: str | os.PathLike[str], what: str, *, synced: bool = False
) -> Iterator[IO[bytes]]:
    """Open a file for bytes, which is at `target` when the block has ended without an exception.

    what     the function that was called, for errors
    synced   the bytes are on the disk before the file is in its place

    >>> import tempfile
    >>> from flowvm.files.writer import writing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(folder + "/a", "example") as file:
    ...         _ = file.write(b"text")
    ...     open(folder + "/a").read()
    'text'
    """
    place, descriptor = _place(os.fsdecode(target))
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        with open(os.dup(descriptor), "wb") as file:
            yield file
        return
    try:
        old = os.stat(place)
    except OSError:
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, f"{what} writes a file, and there is a folder", place)
    beside = _beside(place, old, what)
    if beside is None:
        with open(place, "wb") as file:
            yield file
        return
    handle, name = beside
    try:
        with open(handle, "wb") as file:
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        _move(name, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def put(target: Any, data: bytes | str, what: str, *, synced: bool = False) -> None:
    """Write bytes, or text as UTF-8, to a path or a binary file; see `writing`.

    >>> import io
    >>> from flowvm.files.writer import put
    >>> file = io.BytesIO()
    >>> put(file, "text", "example")
    >>> file.getvalue()
    b'text'
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    if isinstance(target, (str, bytes, os.PathLike)):
        with writing(target, what, synced=synced) as file:  # type: ignore[arg-type]
            file.write(data)
        return
    if isinstance(target, io.TextIOBase) or not callable(getattr(target, "write", None)):
        kind = "a text file" if isinstance(target, io.TextIOBase) else type(target).__name__
        raise ArgumentTypeError(f"{what} writes bytes to a path or a binary file, got {kind}")
    rest = memoryview(data)
    while len(rest):  # a file without a buffer may take a part
        count = target.write(rest if isinstance(target, io.RawIOBase) else data)
        if not isinstance(target, io.RawIOBase):
            return
        rest = rest[count or 0 :]


# --- places ---------------------------------------------------------------------------------------


def _place(path: str) -> tuple[str, int | None]:
    """Return the path behind symbolic links, or a descriptor of this process that it names."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
        named = _DESCRIPTOR.fullmatch(path)
        if named is not None and int(named["pid"]) == os.getpid():
            return path, int(named["fd"])
        if path.startswith("/proc/"):  # links there point to files without a path
            return path, None
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return path, None
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _beside(place: str, old: os.stat_result | None, what: str) -> tuple[int, str] | None:
    """Make a file that can replace `old`.  Return its descriptor and path.

    None where what is there is written through.
    """
    if old is not None and not stat.S_ISREG(old.st_mode):
        return None
    if place.startswith(_KERNEL) and not place.startswith(_MEMORY):
        return None
    folder, name = os.path.split(place)
    path = os.path.join(folder, f".{name[:40]}.{secrets.token_hex(6)}")
    mode = 0o666 if old is None else 0o600
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"{what}: there is no folder", folder) from None
    except OSError as error:
        if error.errno in _FIXED:
            return None
        raise
    if old is None:
        return handle, path
    try:
        status = os.fstat(handle)
        if (status.st_uid, status.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(handle, old.st_uid, old.st_gid)
        os.fchmod(handle, stat.S_IMODE(old.st_mode))
    except BaseException as error:
        os.close(handle)
        os.unlink(path)
        if isinstance(error, OSError) and error.errno in _FIXED:
            return None
        raise
    return handle, path


def _move(name: str, place: str) -> None:
    """Move the file to its place; copy it there if it cannot be moved."""
    try:
        os.replace(name, place)
    except OSError as error:
        if error.errno not in _FIXED:
            raise
        with open(name, "rb") as source, open(place, "wb") as file:
            shutil.copyfileobj(source, file)
        os.unlink(name)

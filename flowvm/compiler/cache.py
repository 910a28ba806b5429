"""The files of compiled code, in a folder that only its owner may write.

An entry is native code, and a process that reads it runs it.  Its checksum says that it is whole,
and not who wrote it.  So a folder is used only if it is this user's and neither its group nor
others may write it.  An entry must be a regular file of this user's, not writable by others,
either; links are not followed.  Otherwise other users could run code as this user.

Everything goes through a descriptor of the folder that was looked at, so another folder cannot be
put in its place in between.  A folder that is made is made with mode 0700.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_open = open  # when Python ends, the builtin goes before the last kernels are loaded
MOST_BYTES = 1 << 28  # of an entry
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_own(status: os.stat_result) -> bool:
    """Return True if a file or folder is this user's and nobody else may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def is_flowvms(status: os.stat_result) -> bool:
    """Return True if only writers of flowvm's sources may write a file or folder.  It came with the
    sources, and is as safe as they are.
    """
    own = os.stat(__file__)
    same = (status.st_uid, status.st_gid) == (own.st_uid, own.st_gid)
    return same and not status.st_mode & _OTHERS_WRITE & ~own.st_mode


def read(
    folder: Path, name: str, trusted: Callable[[os.stat_result], bool] = is_own
) -> bytes | None:
    """Return the bytes of an entry; None if there is none that may be used."""
    with contextlib.suppress(OSError), _opened(folder, trusted) as at:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with _open(os.open(name, flags, dir_fd=at), "rb") as file:
            status = os.fstat(file.fileno())
            if trusted(status) and stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:
                return file.read()
    return None


def write(folder: Path, name: str, data: bytes) -> None:
    """Write an entry beside its place and move it there.  OSError if that fails."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder, is_own) as at:
        half = f"{name}.{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _open(os.open(half, flags, 0o600, dir_fd=at), "wb") as file:
            try:
                file.write(data)
                file.flush()
                os.replace(half, name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                os.unlink(half, dir_fd=at)
                raise


def append(folder: Path, name: str, data: bytes) -> int:
    """Append to a file, and return its size then.  Lines of several processes do not mix."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder, is_own) as at:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=at)
        try:
            os.write(file, data)
            return os.fstat(file).st_size
        finally:
            os.close(file)


@contextlib.contextmanager
def alone(folder: Path, name: str, *, waiting: bool = True) -> Iterator[bool]:
    """Exclude other processes from this folder and name inside the with statement.  The value is
    True if another process was waited for.  Without file locks, nothing is excluded.

    `waiting`: else BlockingIOError is raised where another process would be waited for.

    The lock is a file.  It is removed by the process that made an entry under it; a later process
    then finds the entry.
    """
    global queues
    waits = busy = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            at = stack.enter_context(_opened(folder, is_own))
            # closed, and so unlocked, whatever ends this
            file = stack.enter_context(_lock_file(at, name, os.O_CREAT | os.O_RDWR))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = not waiting
                if waiting:
                    queues = waits = True
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX)
                    finally:
                        queues = False
            if not busy:
                stack.callback(_unlink, f"{name}.lock", at)
        if busy:
            raise BlockingIOError(f"another process has {name}")
        yield waits


def is_locked(folder: Path, name: str) -> bool:
    """Return True if another process is in `alone` with this folder and name."""
    with (
        contextlib.suppress(OSError),
        _opened(folder, is_own) as at,
        _lock_file(at, name, os.O_RDONLY) as file,
    ):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


queues = False  # whether this process waits for another: in `alone`


def _lock_file(at: int, name: str, flags: int) -> IO[str]:
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    return _open(os.open(f"{name}.lock", flags, 0o600, dir_fd=at))


def _unlink(name: str, at: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=at)


def files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the files in a folder and below it.  Files that another process removes meanwhile are
    left out: locks and halves of entries come and go.
    """
    entries = []
    for at, _, names in os.walk(folder):
        for path in (Path(at, name) for name in names):
            with contextlib.suppress(OSError):
                entries.append((path, path.lstat()))
    return entries


def trouble(folder: Path) -> str:
    """Return the reason why the contents of `folder` may not be used; "" if they may, or if there
    is no folder.
    """
    try:
        with _opened(folder, is_own):
            return ""
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        return str(error.strerror)
    except OSError:
        return ""  # no folder: the writer raises the error


@contextlib.contextmanager
def _opened(folder: Path, trusted: Callable[[os.stat_result], bool]) -> Iterator[int]:
    """A descriptor of the folder; PermissionError where it may not be used, and one warning, with
    what to do, where it is the cache.
    """
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(at)
        if not trusted(status):
            why = _why(status)
            if trusted is is_own:
                _warn_once(folder, why)
            raise PermissionError(0, why, str(folder))
        yield at
    finally:
        os.close(at)


def _why(status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, and this process is user {os.geteuid()}'s"
    return f"others may write it (its mode is {stat.S_IMODE(status.st_mode):o})"


@functools.cache
def _warn_once(folder: Path, why: str) -> None:
    warnings.warn(
        f"the cache of compiled code {str(folder)!r} is not used, because {why}, and who writes "
        f"there could run code here: chmod go-w it if it is yours, or set FLOWVM_CACHE_DIR to a "
        f"folder of your own; until then kernels are compiled anew in every process",
        RuntimeWarning,
        stacklevel=2,
    )

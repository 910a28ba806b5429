"""The folder of compiled code: only its owner may have put code there that is run."""

from __future__ import annotations

import os
import stat
import warnings

import pytest

from flowvm.compiler import cache


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "cache"
    cache.write(place, "one.o", b"code")
    cache._warn_once.cache_clear()
    return place


def test_what_is_made_is_nobody_elses(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "one.o").stat().st_mode) == 0o600
    assert cache.read(folder, "one.o") == b"code"
    assert cache.read(folder, "two.o") is None
    cache.write(folder, "one.o", b"other")
    assert cache.read(folder, "one.o") == b"other"
    assert [p.name for p in folder.iterdir()] == ["one.o"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(folder, mode):
    folder.chmod(mode)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert cache.read(folder, "one.o") is None
        with pytest.raises(PermissionError):
            cache.write(folder, "two.o", b"code")
        assert cache.read(folder, "one.o") is None
    assert len(warned) == 1, "it is said once"
    assert "others may write it" in str(warned[0].message)
    assert "chmod go-w" in str(warned[0].message)
    assert not (folder / "two.o").exists()
    assert "others" in cache.trouble(folder)


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert cache.read(folder, "one.o") is None


def test_a_link_to_such_a_folder_is_not_used(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert cache.read(tmp_path / "link", "one.o") == b"code"
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning):
        assert cache.read(tmp_path / "link", "one.o") is None


def test_links_and_pipes_are_no_entries(folder, tmp_path):
    (tmp_path / "elsewhere.o").write_bytes(b"code")
    (folder / "link.o").symlink_to(tmp_path / "elsewhere.o")
    assert cache.read(folder, "link.o") is None
    os.mkfifo(folder / "pipe.o")
    assert cache.read(folder, "pipe.o") is None  # and does not wait for somebody to write
    (folder / "sub.o").mkdir()
    assert cache.read(folder, "sub.o") is None
    cache.write(folder, "link.o", b"new")
    assert (tmp_path / "elsewhere.o").read_bytes() == b"code", "a link was written through"
    assert cache.read(folder, "link.o") == b"new"


def test_an_entry_that_others_may_write_is_none(folder):
    (folder / "one.o").chmod(0o666)
    assert cache.read(folder, "one.o") is None


def test_a_whole_entry_with_a_damaged_head_is_compiled_again(tmp_path):
    import hashlib

    from flowvm.compiler import jit

    jit.set_cache_dir(tmp_path)
    try:
        for head in (b"{}", b"[" * 9999, b'{"imports": 3}', b'{"imports": [3]}', b"\xff", b""):
            body = head + b"\ncode"
            cache.write(tmp_path, "a.o", jit._MAGIC + hashlib.sha256(body).digest() + body)
            assert jit._from_cache("a", tmp_path) is None
    finally:
        jit.set_cache_dir(None)


def test_files_that_go_while_they_are_counted(folder, monkeypatch):
    listed = [*os.walk(folder), (str(folder), [], ["gone.lock"])]
    monkeypatch.setattr(os, "walk", lambda of: listed)
    ((path, status),) = cache.files(folder)
    assert (path.name, status.st_size) == ("one.o", 4)


def test_an_entry_under_the_name_of_another_is_compiled_again(tmp_path):
    from flowvm.compiler import jit

    def compiled(function):
        jit._addresses.clear()
        before = jit.stats().compiled
        jit.native(function, "int64(int64)", facts="exchanged")
        return jit.stats().compiled - before

    jit.set_cache_dir(tmp_path)
    try:
        assert compiled(once) == 1
        assert compiled(twice) == 1
        assert compiled(once) == 0
        first, second = tmp_path.glob("*.o")
        data = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
        assert [compiled(once), compiled(twice)] == [1, 1]
        assert [compiled(once), compiled(twice)] == [0, 0]
    finally:
        jit.set_cache_dir(None)


def once(x: int) -> int:
    return x


def twice(x: int) -> int:
    return 2 * x

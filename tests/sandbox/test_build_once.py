"""Files that are made once on a node: complete or absent; one process makes them while the others wait."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.host.sandbox_account import sandbox_account
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.images import default_root


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []

    def fill(folder: Path) -> None:
        made.append("once")
        (folder / "file").write_text("whole")

    threads = [threading.Thread(target=build_once, args=(tmp_path / "folder", fill)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["once"]
    assert (tmp_path / "folder" / "file").read_text() == "whole"


def test_a_maker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "half"))

    with pytest.raises(SandboxStartFailed, match=r"folder cannot be made: No space left on device \(.*half\)"):
        build_once(tmp_path / "folder", fail)
    assert not (tmp_path / "folder").exists()
    assert [path.name for path in tmp_path.iterdir()] == [".folder.lock"]


def test_what_a_killed_maker_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".folder.new").mkdir()
    (tmp_path / ".folder.new" / "half").touch()
    build_once(tmp_path / "folder", lambda folder: (folder / "whole").touch())
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["whole"]


def test_what_older_versions_gathered_is_removed_in_time(tmp_path: Path) -> None:
    own = own_python(node_cache())
    (tmp_path / own.name).symlink_to(own)
    for name in ("python-unused", "python-in-use"):
        (tmp_path / name).mkdir()
    long_ago = time.time() - 31 * 86_400
    os.utime(tmp_path / "python-unused", (long_ago, long_ago))
    assert own_python(tmp_path) == tmp_path / own.name
    assert {path.name for path in tmp_path.iterdir()} == {own.name, "python-in-use"}


def test_our_python_needs_nothing_of_the_machine() -> None:
    own = own_python(node_cache())
    loader = next((own / "so").glob("ld-*"))
    python = next((own / "bin").glob("python3*"))
    code = "import IPython, sys, rollyard.sandbox_agent.server as s; print(sys.prefix, s.__cached__)"
    done = subprocess.run(
        [loader, "--library-path", own / "so", python, "-I", "-c", code],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{own} {own}/lib")
    assert sandbox_account().can_reach(own)


def test_what_sandboxes_see_is_open_to_them_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        root = default_root(tmp_path / "cache")
    finally:
        os.umask(before)
    made = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    shut = [p for p in made if not p.is_symlink() and not p.name.endswith(".lock") and not p.stat().st_mode & 0o004]
    assert shut == []
    assert root.layers[0].is_dir()

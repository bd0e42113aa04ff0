"""Copies into a sandbox: each file is whole or absent."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rollyard.cli.tar_files import pack

LIMIT = 1 << 20


def packed(source: Path) -> bytes:
    made = io.BytesIO()
    pack(source, made, LIMIT, print)
    return made.getvalue()


def copy_in(data: bytes, path: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "rollyard.sandbox_agent.file_transfer", "in", str(path)]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode()


def test_what_had_the_name_is_replaced_at_once_and_a_second_copy_is_the_same(tmp_path: Path) -> None:
    source, dest = tmp_path / "d", tmp_path / "in"
    (source / "closed").mkdir(parents=True)
    (source / "closed" / "file").write_text("new")
    os.link(source / "closed" / "file", source / "hard")
    (source / "link").symlink_to("hard")
    (source / "closed").chmod(0o555)
    dest.mkdir()
    (dest / "d").mkdir()
    os.mkfifo(dest / "d" / "hard")  # an open for writing would wait for ever
    for _ in range(2):
        assert copy_in(packed(source), dest) == (0, "")
        found = sorted(str(path.relative_to(dest)) for path in dest.rglob("*"))
        assert found == ["d", "d/closed", "d/closed/file", "d/hard", "d/link"]
        assert (dest / "d" / "link").read_text() == "new"
        assert (dest / "d" / "closed").stat().st_mode & 0o777 == 0o755, (
            "a sandbox's account must be able to write in it"
        )
    assert (dest / "d" / "hard").stat().st_ino == (dest / "d" / "closed" / "file").stat().st_ino


def test_a_stream_that_is_cut_leaves_the_former_file(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(bytes(9000))
    (tmp_path / "file").write_text("old")
    code, said = copy_in(packed(tmp_path / "new")[:5000], tmp_path / "file")
    assert (code, said) == (1, f"{tmp_path}/file cannot be written in the sandbox: unexpected end of data\n")
    assert (tmp_path / "file").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "new"]

"""Patches as text say what git makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollyard.tasks.rows.dataset_row import RowRefused
from rollyard.tasks.swe.rows.patches import changed_paths, difference, pattern, reversed_patch

BEFORE = {
    "kept.txt": "one\ntwo\n\nthree\n\x0cfour\r\nfive\nsix\nseven\neight\nnine\nten\n",
    "gone.txt": "gone\n",
    "moved.txt": "".join(f"line {n}\n" for n in range(20)),
    "run.sh": "echo\n",
    "no end.txt": "a\nb",
    "naïve.txt": "x\n",
    "-- dash": "-- x\n",
}
AFTER = {
    "kept.txt": "one\n2\n\nthree\n\x0cfour\nfive\nsix\nseven\neight\nnine\nten\neleven\n",
    "new/file.txt": "--- a/b\n+++ b/b\n@@ -1 +1 @@\n",
    "moved there.txt": "".join(f"line {n}\n" for n in range(20) if n != 7),
    "run.sh": "echo\n",
    "no end.txt": "a\nc",
    "naïve.txt": "y\n",
    "-- dash": "",
}


def git(folder: Path, *words: str, text: str | None = None) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t", "-c", "core.autocrlf=false", *words]
    done = subprocess.run(
        command, cwd=folder, input=None if text is None else text.encode(), capture_output=True, check=True
    )
    return done.stdout.decode()


def write(folder: Path, files: dict[str, str]) -> None:
    for path in folder.rglob("*"):
        if ".git" not in path.parts and path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode())


def read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in files}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    write(tmp_path, BEFORE)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    write(tmp_path, AFTER)
    (tmp_path / "run.sh").chmod(0o755)
    git(tmp_path, "add", ".")
    return tmp_path


def test_the_reverse_of_a_patch_takes_it_back(repository: Path) -> None:
    patch = git(repository, "diff", "--cached", "-M")
    assert "rename from moved.txt" in patch
    back = reversed_patch(patch)
    git(repository, "apply", "--index", "-", text=back)
    assert read(repository) == BEFORE
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "apply", "-", text=reversed_patch(back))
    assert read(repository) == AFTER


def test_a_patch_names_all_paths_that_it_changes(repository: Path) -> None:
    patch = git(repository, "diff", "--cached", "-M")
    assert {*changed_paths(patch)} == (BEFORE.keys() | AFTER.keys())
    assert changed_paths("") == []


def test_the_difference_of_two_texts_is_a_patch_of_git(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, BEFORE)
    names = [*BEFORE, *(name for name in AFTER if name not in BEFORE)]
    patch = "".join(difference(name, BEFORE.get(name), AFTER.get(name)) for name in names if name.isascii())
    git(tmp_path, "apply", "-", text=patch)
    assert read(tmp_path) == AFTER | {"naïve.txt": "x\n"}


def test_a_binary_patch_has_no_reverse() -> None:
    with pytest.raises(RowRefused, match="binary"):
        reversed_patch("diff --git a/x b/x\nBinary files a/x and b/x differ\n")


def test_a_pattern_means_exactly_its_path() -> None:
    assert pattern("./tests/a[1]*?.py") == "/tests/a[[]1][*][?].py"

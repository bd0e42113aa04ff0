"""Whiteouts and hard links mean the same wherever they stand in a layer. The expected files are worked out by hand."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from rollyard.images.layer_unpacker import LayerUnpacker
from rollyard.images.tar_stream import BrokenArchive
from tests.support.image_registry import hard_link, symlink, tar

Entries = Sequence[tuple[str, Any]]


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def unpack(root: Path, *layers: Entries) -> Path:
    root.mkdir()
    unpacker = LayerUnpacker(str(root), 1 << 20)
    for layer in layers:
        unpacker.apply(iter([tar(*layer)]))
    unpacker.finish()
    return root


def listing(root: Path) -> dict[str, str]:
    """Path -> content of a file, target of a link, or nothing for a folder."""
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        text = f"-> {os.readlink(path)}" if stat.S_ISLNK(mode) else "" if stat.S_ISDIR(mode) else path.read_text()
        found[str(path.relative_to(root))] = text
    return found


CASES: dict[str, tuple[Entries, Entries, dict[str, str]]] = {
    "an opaque mark keeps nothing of a folder below it": (
        [("a", None), ("a/sub", None), ("a/sub/x", b"low"), ("a/z", b"low")],
        [("a/sub/y", b"new"), ("a/.wh..wh..opq", b"")],
        {"a": "", "a/sub": "", "a/sub/y": "new"},
    ),
    "an opaque mark and a folder with an entry of its own": (
        [("a", None), ("a/sub", None), ("a/sub/x", b"low")],
        [("a/sub", None), ("a/sub/y", b"new"), ("a/.wh..wh..opq", b"")],
        {"a": "", "a/sub": "", "a/sub/y": "new"},
    ),
    "a hard link to its own name beside an opaque mark and a whiteout": (
        [("a", None), ("a/x", b"low"), ("a/z", b"low"), ("b", b"low")],
        [("a/.wh..wh..opq", b""), ("a/x", hard_link("a/x")), (".wh.b", b""), ("b", hard_link("b"))],
        {"a": "", "a/x": "low", "b": "low"},
    ),
    "a whiteout beside a new folder of its name": (
        [("b", None), ("b/old", b"low"), ("b/deep", None), ("b/deep/old", b"low")],
        [("b", None), ("b/deep/new", b"new"), (".wh.b", b"")],
        {"b": "", "b/deep": "", "b/deep/new": "new"},
    ),
    "a whiteout beside a file in a folder without an entry": (
        [("b", None), ("b/old", b"low")],
        [("b/new", b"new"), (".wh.b", b"")],
        {"b": "", "b/new": "new"},
    ),
    "a whiteout beside a file that takes the place of a folder": (
        [("b", None), ("b/old", b"low")],
        [("b", b"new"), (".wh.b", b"")],
        {"b": "new"},
    ),
    "a whiteout of a link to a folder": (
        [("real", None), ("real/f", b"low"), ("way", symlink("real"))],
        [(".wh.way", b""), ("other", b"new")],
        {"real": "", "real/f": "low", "other": "new"},
    ),
    "names that are not whiteouts": (
        [("keep", b"low")],
        [(".wh.", b""), (".wh..wh.plnk", None), (".wh..wh.plnk/7.8", b"low"), (".wh.missing", b"")],
        {"keep": "low"},
    ),
    "a link to a file that the layer removes": (
        [("bin", None), ("bin/tool", b"low"), ("bin/alias", b"other")],
        [("bin/alias", hard_link("bin/tool")), ("deep/no/parent", hard_link("/bin/tool")), ("bin/.wh.tool", b"")],
        {"bin": "", "bin/alias": "low", "deep": "", "deep/no": "", "deep/no/parent": "low"},
    ),
    "a link to a file in a folder that the layer removes": (
        [("bin", None), ("bin/sub", None), ("bin/sub/tool", b"low")],
        [("alias", hard_link("bin/sub/tool")), (".wh.bin", b"")],
        {"alias": "low"},
    ),
    "a link to a file that the layer replaces": (
        [("tool", b"low")],
        [("alias", hard_link("tool")), ("tool", b"new"), ("second", hard_link("alias"))],
        {"tool": "new", "alias": "new", "second": "new"},
    ),
    "a link through a linked folder, and one that climbs out": (
        [("lib", symlink("usr/lib")), ("usr", None), ("usr/lib", None), ("usr/lib/so", b"low")],
        [("one", hard_link("lib/so")), ("two", hard_link("../../lib/so")), ("usr/lib/.wh.so", b"")],
        {"lib": "-> usr/lib", "usr": "", "usr/lib": "", "one": "low", "two": "low"},
    ),
    "a link to a symbolic link": (
        [("file", b"low")],
        [("name", hard_link("sym")), ("sym", symlink("file"))],
        {"file": "low", "sym": "-> file", "name": "-> file"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_gives_the_same_files_in_each_order_of_its_entries(tmp_path: Path, case: str) -> None:
    below, above, expected = CASES[case]
    for number, order in enumerate(permutations(above)):
        assert listing(unpack(tmp_path / str(number), below, order)) == expected, [name for name, _ in order]


def test_links_of_one_file_are_one_file_and_a_later_layer_removes_one_name(tmp_path: Path) -> None:
    second: Entries = [("link", hard_link("file")), ("other", hard_link("file"))]
    root = unpack(tmp_path / "root", [("file", b"1")], second, [(".wh.file", b"")])
    assert listing(root) == {"link": "1", "other": "1"}
    assert os.stat(root / "link").st_ino == os.stat(root / "other").st_ino


def test_folder_file_folder_over_three_layers_and_a_file_that_comes_back(tmp_path: Path) -> None:
    layers: list[Entries] = [
        [("p", None), ("p/a", b"1"), ("q", b"1")], [("p", b"2"), (".wh.q", b"")], [("p", None), ("p/b", b"3"), ("q", b"3")],
    ]  # fmt: skip
    assert listing(unpack(tmp_path / "root", *layers)) == {"p": "", "p/b": "3", "q": "3"}


@pytest.mark.parametrize("target", ["/missing", "gone/way/secret", "folder", "loop"])
def test_a_hard_link_leads_to_no_file_outside_and_to_no_folder(tmp_path: Path, target: str) -> None:
    """`gone/way` was a symbolic link out of the root, in a folder that the layer removes."""
    (tmp_path / "secret").write_text("secret")
    below: Entries = [("gone", None), ("gone/way", symlink(str(tmp_path))), ("folder", None)]
    above: Entries = [(".wh.gone", b""), ("loop", hard_link("other")), ("other", hard_link(target))]
    with pytest.raises(BrokenArchive, match="it has a hard link to a f"):
        unpack(tmp_path / "root", below, above)
    assert os.stat(tmp_path / "secret").st_nlink == 1


def test_a_chain_of_hard_links_ends_at_its_file(tmp_path: Path) -> None:
    chain: list[tuple[str, Any]] = [(f"l{n}", hard_link(f"l{n + 1}")) for n in range(200)]
    root = unpack(tmp_path / "root", [*chain, ("l200", b"end")])
    assert os.stat(root / "l0").st_nlink == 201

"""A tar stream from a sandbox is hostile; nothing of it gets out of the destination."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from rollyard.cli.tar_files import pack, unpack
from rollyard.core.errors import RollyardError

LIMIT = 1 << 20


def stream(*entries: tarfile.TarInfo) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for one in entries:
            archive.addfile(one, io.BytesIO(bytes(one.size)))
    made.seek(0)
    return made


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.type, one.linkname, one.size, one.mode = kind, link, size, 0o6755
    return one


FOLDER = entry("d", tarfile.DIRTYPE)


@pytest.mark.parametrize(
    "hostile",
    [
        [entry("../out")],
        [entry("/tmp/out")],
        [FOLDER, entry("d/../../out")],
        [FOLDER, entry("d/up", tarfile.SYMTYPE, ".."), entry("d/up/out")],
        [FOLDER, entry("d/up", tarfile.SYMTYPE, "."), entry("d/up/x")],
        [FOLDER, entry("out")],
        [entry("a/b")],
        [entry(".")],
        [entry("..", tarfile.DIRTYPE)],
    ],
    ids=lambda entries: entries[-1].name,
)
def test_a_path_outside_is_refused_and_nothing_is_left(tmp_path: Path, hostile: list[tarfile.TarInfo]) -> None:
    dest = tmp_path / "here"
    dest.mkdir()
    with pytest.raises(RollyardError, match="cannot be unpacked"):
        unpack(stream(*hostile), dest, LIMIT, print)
    assert [path for path in tmp_path.rglob("*")] == [dest]


def test_links_that_lead_out_and_devices_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    said: list[str] = []
    entries = [
        FOLDER,
        entry("d/file", size=3),
        entry("d/good", tarfile.SYMTYPE, "file"),
        entry("d/hard", tarfile.LNKTYPE, "d/file"),
        entry("d/absolute", tarfile.SYMTYPE, "/etc/passwd"),
        entry("d/above", tarfile.SYMTYPE, "../secret"),
        entry("d/stolen", tarfile.LNKTYPE, "../secret"),
        entry("d/device", tarfile.CHRTYPE),
        entry("d/pipe", tarfile.FIFOTYPE),
    ]
    unpack(stream(*entries), tmp_path, LIMIT, said.append)
    assert sorted(os.listdir(tmp_path / "d")) == ["file", "good", "hard"]
    assert (tmp_path / "d" / "file").stat().st_mode & 0o7000 == 0
    assert len(said) == 5
    assert "a link to '/etc/passwd' outside of the copy, is left out" in said[0]


def test_links_through_other_links_do_not_lead_out(tmp_path: Path) -> None:
    said: list[str] = []
    links = {
        "d/a/b/self": "../..",
        "d/a/here": ".",
        "d/down": "./a//b",
        "d/through": "down/self/a/here",
        "d/a/b/beyond": "../../..",
        "d/escape": "a/b/self/../..",
        "d/a/escape": "../down/../../..",
        "d/inner": "a/../a",
        "d/empty": "",
    }
    folders = [entry(name, tarfile.DIRTYPE) for name in ("d", "d/a", "d/a/b")]
    unpack(
        stream(*folders, *(entry(name, tarfile.SYMTYPE, link) for name, link in links.items())),
        tmp_path,
        LIMIT,
        said.append,
    )
    made = [path for path in (tmp_path / "d").rglob("*") if path.is_symlink()]
    assert sorted(str(path.relative_to(tmp_path)) for path in made) == ["d/a/b/self", "d/a/here", "d/down", "d/through"]
    assert all(path.resolve().is_relative_to(tmp_path / "d") for path in made)
    assert len(said) == 5


def test_a_copy_that_is_a_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(RollyardError, match="a link to another place"):
        unpack(stream(entry("d", tarfile.SYMTYPE, "secret")), tmp_path, LIMIT, print)
    assert os.listdir(tmp_path) == ["secret"]


def test_the_size_is_bounded_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RollyardError, match="write a larger --max-size"):
        unpack(stream(FOLDER, entry("d/a", size=LIMIT)), tmp_path, LIMIT, print)
    with pytest.raises(RollyardError, match="write a larger --max-size"):
        unpack(stream(FOLDER, *(entry(f"d/{i}") for i in range(300))), tmp_path, LIMIT, print)
    lying = io.BytesIO(entry("big", size=1 << 40).tobuf())
    with pytest.raises(RollyardError, match="write a larger --max-size"):
        unpack(lying, tmp_path, LIMIT, print)
    cut = io.BytesIO(stream(entry("cut", size=5000)).read()[:1000])
    with pytest.raises(RollyardError, match="ends too early"):
        unpack(cut, tmp_path, LIMIT, print)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").touch()
    with pytest.raises(RollyardError, match="exists and is a folder"):
        unpack(stream(FOLDER, entry("d/x")), tmp_path, LIMIT, print)
    assert os.listdir(tmp_path / "d") == ["mine"]
    (tmp_path / "file").write_text("old")
    unpack(stream(entry("file", size=2)), tmp_path, LIMIT, print, "file")
    assert (tmp_path / "file").read_bytes() == b"\0\0"
    with pytest.raises(RollyardError, match="there is no folder"):
        unpack(stream(FOLDER), tmp_path / "no" / "where", LIMIT, print)


def test_a_stream_that_ends_between_two_files_leaves_nothing(tmp_path: Path) -> None:
    """Its sender was lost, or was ended for its memory."""
    one_file = io.BytesIO(stream(FOLDER, entry("d/a", size=512), entry("d/b", size=512)).read()[: 3 * 512])
    with pytest.raises(RollyardError, match="ended too early"):
        unpack(one_file, tmp_path, LIMIT, print, whole=lambda: False)
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_never_replaced_and_what_is_empty_is_no_copy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("pipe")
    for name in ("pipe", "stdout"):
        with pytest.raises(RollyardError, match="is a device or a pipe; name another"):
            unpack(stream(entry("file", size=2)), tmp_path / name, LIMIT, print)
    assert (tmp_path / "stdout").is_fifo()
    assert not unpack(stream(), tmp_path / "nothing", LIMIT, print)
    with pytest.raises(RollyardError, match="is a device or a pipe, which is not copied"):
        pack(tmp_path / "pipe", io.BytesIO(), LIMIT, print)
    assert sorted(os.listdir(tmp_path)) == ["pipe", "stdout"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RollyardError, match="/proc/self cannot be written: "):
        unpack(stream(entry("file", size=2)), Path("/proc/self"), LIMIT, print, "file")
    with pytest.raises(RollyardError, match="cannot be written: File name too long"):
        unpack(stream(FOLDER, entry("d/" + "x" * 300)), tmp_path, LIMIT, print, "d")
    assert not list(tmp_path.iterdir())


def test_a_packed_folder_comes_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("content")
    os.mkfifo(source / "pipe")
    made, said = io.BytesIO(), list[str]()
    pack(source, made, LIMIT, said.append)
    assert said == [f"{source}/pipe is left out: it is not a file, folder or link"]
    made.seek(0)
    unpack(made, tmp_path / "copy", LIMIT, said.append)
    assert (tmp_path / "copy" / "deep" / "file").read_text() == "content"
    with pytest.raises(RollyardError, match="copy a part of it"):
        pack(source, io.BytesIO(), 3, print)


def test_the_sandbox_does_not_choose_the_name_of_the_copy(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("mine")
    (tmp_path / "out").write_text("mine")
    unpack(stream(entry(".bashrc", size=3)), tmp_path, LIMIT, print, "result.txt")
    assert (tmp_path / "result.txt").read_bytes() == bytes(3)
    for name in (".bashrc", ".profile", "out"):
        with pytest.raises(RollyardError, match="name the file in the destination"):
            unpack(stream(entry(name, size=3)), tmp_path, LIMIT, print)
    assert sorted(os.listdir(tmp_path)) == [".bashrc", "out", "result.txt"]
    assert {(tmp_path / name).read_text() for name in (".bashrc", "out")} == {"mine"}


class _Endless(io.RawIOBase):
    """A start, and then the same bytes for ever."""

    def __init__(self, start: bytes, rest: bytes) -> None:
        self._start, self._rest = start, rest

    def read(self, size: int = -1) -> bytes:
        data, self._start = self._start, b""
        return data or self._rest


@pytest.mark.parametrize(
    "rest", [bytes(1 << 16), entry("x", tarfile.XHDTYPE).tobuf() * 100, entry("g", tarfile.XGLTYPE).tobuf() * 100]
)
def test_a_stream_without_end_ends_at_the_bound(tmp_path: Path, rest: bytes) -> None:
    start = entry("d").tobuf() + (b"" if rest.strip(b"\0") else bytes(1024))
    with pytest.raises(RollyardError, match="does not end"):
        unpack(_Endless(start, rest), tmp_path, LIMIT, print)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_deep_folders_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RollyardError, match="nested more than 200 deep"):
        unpack(stream(*(entry("/".join("d" * n), tarfile.DIRTYPE) for n in range(1, 300))), tmp_path, 4 * LIMIT, print)
    assert os.listdir(tmp_path) == []

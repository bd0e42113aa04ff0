"""Layers made by an attacker: nothing outside the root is read or written, and nothing special appears inside."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.host.sandbox_account import sandbox_account
from rollyard.images.base import FillRoom
from rollyard.images.unpack import BrokenLayer, unpack_layers
from tests.support.image_registry import hard_link, symlink, tar


@pytest.fixture
def room(tmp_path: Path) -> FillRoom:
    return FillRoom(8 << 20, os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))


async def _unpack(folder: Path, room: FillRoom, *layers: bytes) -> Path:
    files = []
    for number, layer in enumerate(layers):
        files.append(folder / f"layer{number}")
        files[-1].write_bytes(layer)
    await unpack_layers("docker://x/y:z", files, folder / "root", room)
    return folder / "root"


async def test_no_name_and_no_link_leads_out_of_the_root(open_folder: Path, room: FillRoom) -> None:
    (open_folder / "outside").mkdir()
    (open_folder / "outside").chmod(0o777)
    outside = str(open_folder / "outside")
    first = tar(
        ("../outside/a", b"1"), (f"{outside}/b", b"1"), ("x/../../../outside/c", b"1"),
        ("abs", symlink(outside)), ("up", symlink("../outside")), ("deep", None), ("deep/up", symlink("../../outside")),
        ("chain1", symlink("chain2")), ("chain2", symlink("/../../outside")), ("leaf", symlink(f"{outside}/leaf")),
        ("hard", hard_link("../../../../../etc/hostname")),
    )  # fmt: skip
    with pytest.raises(BrokenLayer, match="a hard link to a file that is not there"):
        await _unpack(open_folder, room, first)
    assert os.listdir(outside) == []
    (open_folder / "root").rename(open_folder / "old")
    first = tar(
        ("abs", symlink(outside)), ("up", symlink("../outside")), ("deep", None), ("deep/up", symlink("../../outside")),
        ("chain1", symlink("chain2")), ("chain2", symlink("/../../outside")), ("leaf", symlink(f"{outside}/leaf")),
    )  # fmt: skip
    second = tar(
        ("abs/a", b"1"), ("up/b", b"1"), ("deep/up/c", b"1"), ("chain1/d", b"1"), ("leaf", b"1"), ("abs/../e", b"1"),
        ("up/.wh..wh..opq", b""), ("abs/.wh.keep", b""), ("up/more", None), ("up/more/f", b"1"),
    )  # fmt: skip
    root = await _unpack(open_folder, room, first, second)
    assert os.listdir(outside) == []
    assert (root / "outside" / "b").read_text() == "1"
    assert (root / outside[1:] / "a").read_text() == "1"
    assert stat.S_ISREG(os.lstat(root / "leaf").st_mode)


async def test_nothing_special_is_made(open_folder: Path, room: FillRoom) -> None:
    root = await _unpack(
        open_folder,
        room,
        tar(
            ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}), ("disk", {"type": tarfile.BLKTYPE}),
            ("fifo", {"type": tarfile.FIFOTYPE}), ("su", {"mode": 0o6755}), ("locked", {"mode": 0}),
            ("closed", {"type": tarfile.DIRTYPE, "mode": 0}), ("closed/in", b"1"), ("owned", {"uid": 0, "gid": 0}),
            ("tmp", {"type": tarfile.DIRTYPE, "mode": 0o1777}),
        ),
    )  # fmt: skip
    modes = {name: stat.S_IMODE(os.stat(root / name).st_mode) for name in os.listdir(root)}
    assert modes == {"su": 0o755, "locked": 0o600, "closed": 0o700, "owned": 0o644, "tmp": 0o1777}
    assert {os.lstat(root / name).st_uid for name in modes} == {os.stat(root).st_uid}


async def test_folders_outside_of_the_root_keep_their_times(open_folder: Path, room: FillRoom) -> None:
    outside = open_folder / "outside"
    (outside / "apt").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(outside / "apt", sandbox_account().uid, sandbox_account().gid)
    before = os.stat(outside / "apt").st_mtime_ns
    layer = tar(
        ("a", None), ("a/apt", {"type": tarfile.DIRTYPE, "mtime": 12345}), ("b", {"type": tarfile.DIRTYPE, "mtime": 12345}),
        ("a", symlink(str(outside))),
    )  # fmt: skip
    root = await _unpack(open_folder, room, layer)
    assert os.path.islink(root / "a")
    assert os.stat(root / "b").st_mtime == 12345
    assert os.stat(outside / "apt").st_mtime_ns == before


def _too_long() -> bytes:
    info = tarfile.TarInfo("big")
    info.size = 1 << 22
    return info.tobuf() + bytes(1024)


def _general(count: int) -> bytes:
    info = tarfile.TarInfo("a")
    return info.create_pax_global_header({f"key{number}": "1" for number in range(count)}) + info.tobuf() + bytes(1024)


def _sparse() -> bytes:
    info = tarfile.TarInfo("sparse")
    info.type = tarfile.GNUTYPE_SPARSE
    return info.tobuf() + bytes(1024)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_too_long, "ends too early"),
        (lambda: tar(("loop", symlink("loop")), ("loop/x", b"1")), "a loop of symbolic links"),
        (lambda: tar(("a", b"1"), ("a/b", b"1")), "a file below another file"),
        (lambda: tar(("n" * 300, b"1"), format=tarfile.PAX_FORMAT), "an impossible file name"),
        (lambda: tar(("/".join("d" * 1000), b"1"), format=tarfile.PAX_FORMAT), "nested more than 200 deep"),
        (_sparse, "a sparse file"),
        (lambda: _general(2000), "more than 1000 general records"),
        (lambda: b"x" * 2048, "not a tar archive"),
        (lambda: b"\x1f\x8b" + b"junk" * 50, "gzip data is damaged"),
        (lambda: b"\x28\xb5\x2f\xfd" + b"junk" * 50, "zstd data is damaged"),
    ],
)
async def test_a_damaged_layer_is_named(open_folder: Path, room: FillRoom, make: Callable[[], bytes], why: str) -> None:
    with pytest.raises(BrokenLayer, match=why) as caught:
        await _unpack(open_folder, room, tar(("ok", b"1")), make())
    assert caught.value.number == 1


@pytest.mark.parametrize("mtime", ["nan", "inf", "-1e300"])
async def test_a_time_that_no_file_can_have_is_left_out(open_folder: Path, room: FillRoom, mtime: str) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"mtime": mtime}
    root = await _unpack(open_folder, room, info.tobuf(format=tarfile.PAX_FORMAT) + bytes(1024))
    assert (root / "a").exists()


async def test_an_image_that_grows_without_end_stops_at_the_limit(open_folder: Path, room: FillRoom) -> None:
    bombs = (
        tar(("zeros", bytes(9 << 20))),
        tar(*((f"f{number}", b"") for number in range(2_500))),
    )
    for bomb in bombs:
        with pytest.raises(ImageUnavailable, match=r"more than the 8388608 bytes.*raise `sandbox.images.cacheSize`"):
            await _unpack(open_folder, room, bomb)
        (open_folder / "root").rename(open_folder / f"old{len(os.listdir(open_folder))}")

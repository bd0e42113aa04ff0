"""Files of the shared tier: what is packed comes back, and a forged or damaged file writes nothing outside of the root."""

from __future__ import annotations

import hashlib
import io
import os
import random
from pathlib import Path

import pytest
import zstandard

from rollyard.core.errors import ImageUnavailable
from rollyard.images.base import FillRoom
from rollyard.images.flat_layer import (
    BrokenFlatLayer,
    FlatIndex,
    FlatList,
    Frame,
    packed_index,
    packed_list,
    read_index,
    skippable,
)
from rollyard.images.flat_packer import pack
from rollyard.images.tree_size import bytes_on_disk, count_names
from rollyard.images.unpack import BrokenLayer, LayerJob, unpack_differences


@pytest.fixture
def room(tmp_path: Path) -> FillRoom:
    return FillRoom(1 << 30, os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))


async def unpack_flat(file: Path, root: Path, room: FillRoom) -> int:
    (made,) = await unpack_differences("x", [LayerJob(root, whole=False, file=file, packed=True)], room)
    assert made["names"] == count_names(root)
    size: int = made["bytes"]
    return size


def _states(root: Path) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for above, folders, files in os.walk(os.fsencode(root)):
        for path in (os.path.join(above, name) for name in (*folders, *files)):
            info = os.lstat(path)
            content: object = None
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).digest()
            found[path.removeprefix(os.fsencode(root))] = (info.st_mode, info.st_mtime_ns, info.st_nlink, content)
    return found


async def test_all_that_is_packed_comes_back(open_folder: Path, room: FillRoom) -> None:
    source, draw = open_folder / "source", random.Random(1)
    for folder in ("many", "empty", "a/b/" + "long" * 40):
        (source / folder).mkdir(parents=True)
    for number in range(300):
        (source / f"many/{number}").write_bytes(draw.randbytes(draw.choice([0, 1, 511, 512, 513, 9000])))
    for size in (1 << 20, (1 << 20) - 512, (1 << 20) - 1024, (3 << 20) + 1):
        (source / f"big{size}").write_bytes(draw.randbytes(size))
    (source / ("long" * 40)).write_text("long name")
    os.link(source / "many/1", source / "zz")
    (source / "many/link").symlink_to("t" * 200)
    (source / "out").symlink_to("/etc")
    with open(os.fsencode(source) + b"/\xff\xfe", "wb") as file:
        file.write(b"no text")
    (source / "a/b").chmod(0o1750)
    (source / "zz").chmod(0o640)
    os.utime(source / "zz", ns=(1, 1_234_567_890_123_456_789))
    os.utime(source / "empty", ns=(1, 2_345_678_901))
    with open(open_folder / "packed", "xb") as file:
        assert pack(str(source), file) == count_names(source)
    size = await unpack_flat(open_folder / "packed", open_folder / "root", room)
    assert _states(open_folder / "root") == _states(source)
    assert bytes_on_disk(open_folder / "root") <= size <= bytes_on_disk(source) + 4096 * len(_states(source))


def _forged(files: FlatList, length: int | None = None, size: int | None = None) -> bytes:
    content = bytes(4096)
    frame = zstandard.ZstdCompressor().compress(content)
    digest = hashlib.sha256(frame).hexdigest()
    data, listed = packed_list(files)
    frames = [Frame(len(frame) if length is None else length, len(content) if size is None else size, digest)]
    return frame + skippable(data) + packed_index(FlatIndex(frames, listed))


OUT = "../outside/file"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (FlatList([], [(OUT, 0o644, 0, 1, 0)], [], [], []), "without its folder"),
        (FlatList([], [("/tmp/file", 0o644, 0, 1, 0)], [], [], []), "without its folder"),
        (FlatList([("..", 0o755, 0)], [("../file", 0o644, 0, 1, 0)], [], [], []), "leads elsewhere"),
        (FlatList([("", 0o755, 0)], [("/file", 0o644, 0, 1, 0)], [], [], []), "leads elsewhere"),
        (FlatList([], [("a/file", 0o644, 0, 1, 0)], [("a", "../outside", 0)], [], []), "without its folder"),
        (FlatList([("a", 0o755, 0)], [("a/f", 0o644, 0, 1, 0)], [("a", "../outside", 0)], [], []), "a name twice"),
        (FlatList([], [("a", 0o644, 0, 1, 0)], [("a", "../outside/file", 0)], [], []), "a name twice"),
        (FlatList([], [("a", 0o644, 0, 1, 0)] * 2, [], [], []), "a name twice"),
        (FlatList([], [("a", 0o644, 0, 1, 0)], [], [], ["a"]), "a name twice"),
        (FlatList([], [], [], [], ["../outside"]), "without its folder"),
        (FlatList([], [], [("a", "/etc/passwd", 0)], [("b", "a")], []), "a further name for no file"),
        (FlatList([], [("a", 0o644, 0, 8192, 0)], [], [], []), "impossible place"),
        (FlatList([], [("a", 0o644, 0, 1, 2), ("b", 0o644, 0, 1, -1)], [], [], []), "impossible place"),
        (FlatList([], [("a\0b", 0o644, 0, 1, 0)], [], [], []), "leads elsewhere"),
        (FlatList([("/".join("d" * depth), 0o755, 0) for depth in range(1, 500)], [], [], [], []), "nested more than"),
        (FlatList([("n" * 300, 0o755, 0)], [], [], [], []), "an impossible file name"),
        (FlatList([("a", "mode", 0)], [], [], [], []), "list is damaged"),  # type: ignore[list-item]
    ],
)
async def test_a_forged_list_is_refused(open_folder: Path, room: FillRoom, files: FlatList, why: str) -> None:
    outside = open_folder / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (open_folder / "packed").write_bytes(_forged(files))
    with pytest.raises(BrokenLayer, match=why):
        await unpack_flat(open_folder / "packed", open_folder / "root", room)
    assert os.listdir(outside) == []


async def test_no_mode_of_a_list_gives_rights_or_locks_the_owner_out(open_folder: Path, room: FillRoom) -> None:
    files = FlatList([("d", 0o6000, 0)], [("d/f", 0o6755, 0, 1, 0), ("d/g", 0, 0, 1, 1)], [], [], [])
    (open_folder / "packed").write_bytes(_forged(files))
    await unpack_flat(open_folder / "packed", open_folder / "root", room)
    modes = {name: (open_folder / "root" / name).stat().st_mode & 0o7777 for name in ("d", "d/f", "d/g")}
    assert modes == {"d": 0o700, "d/f": 0o755, "d/g": 0o600}


async def test_an_image_above_the_limit_writes_nothing(open_folder: Path, room: FillRoom) -> None:
    (open_folder / "packed").write_bytes(_forged(FlatList([("d", 0o755, 0)], [("a", 0o644, 0, 1, 0)], [], [], [])))
    with pytest.raises(ImageUnavailable, match="more than the 8191 bytes"):
        await unpack_flat(open_folder / "packed", open_folder / "root", FillRoom(8191, room.lock_fd))
    assert os.listdir(open_folder / "root") == []


@pytest.mark.parametrize(("length", "size"), [(None, 4095), (None, 1 << 40), (1 << 40, None), (-1, None)])
async def test_a_frame_of_another_size_is_damaged(
    open_folder: Path, room: FillRoom, length: int | None, size: int | None
) -> None:
    (open_folder / "packed").write_bytes(_forged(FlatList([], [("a", 0o644, 0, 1, 0)], [], [], []), length, size))
    with pytest.raises(BrokenLayer, match="damaged"):
        await unpack_flat(open_folder / "packed", open_folder / "root", room)


def test_a_file_of_another_release_is_made_again() -> None:
    whole = _forged(FlatList([], [], [], [], []))
    index = whole[whole.rindex(b'{"format"') :].replace(b'"format": 2', b'"format": 1')
    end = index.rindex(b"}") + 1
    digest = hashlib.sha256(index[:end]).digest()
    with pytest.raises(BrokenFlatLayer, match="another version"):
        read_index(io.BytesIO(index[: end + 4] + digest + index[-8:]))

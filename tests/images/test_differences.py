"""Layers that are unpacked into folders of their own show the files of a plain unpack of all into one folder."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from rollyard.images.base import FillRoom
from rollyard.images.flat_packer import pack
from rollyard.images.flat_processes import unpack_flat
from rollyard.images.layer_stack import LayerStack
from rollyard.images.layer_unpacker import LayerUnpacker
from rollyard.images.tar_stream import BrokenArchive
from rollyard.images.unpack import BrokenLayer
from rollyard.images.unpacked_layers import HeldLayers, UnpackedLayers, layer_names
from tests.images.test_layers_in_any_order import CASES, Entries, unpack
from tests.support.image_registry import hard_link, symlink, tar

NAMES = ("a", "b", "c", ".hidden")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def differences(folder: Path, layers: Sequence[Entries], whole: int | None = None) -> LayerStack:
    """Unpack each layer into a folder of its own. `whole`: number of the one that gets links to all below."""
    seen = list[Path]()
    folder.mkdir()
    for number, layer in enumerate(layers):
        root, below = folder / str(number), LayerStack(seen)
        root.mkdir()
        unpacker = LayerUnpacker(str(root), 1 << 20, LayerStack(()) if number == whole else below)
        if number == whole:
            unpacker.link(below)
        unpacker.apply(iter([tar(*layer)]))
        unpacker.finish()
        seen = [root, *([] if number == whole else seen)]
    return LayerStack(seen)


def packed_and_unpacked(folder: Path, count: int, whole: int | None, then_whole: int | None) -> LayerStack:
    """Send the layers that `differences` made through files of the shared tier. `then_whole`: number of the one that then gets
    links to all below."""
    first, seen = list[Path](), list[Path]()
    for number in range(count):
        root, source = folder / f"{number}-{then_whole}", folder / str(number)
        root.mkdir()
        with open(folder / "packed", "wb") as file:
            pack(str(source), file, LayerStack(first) if number == whole else None)
        with open(folder / "packed", "rb") as file, contextlib.chdir("/"):
            unpack_flat(file, number, str(root), 1 << 20, LayerStack(seen) if number == then_whole else None)
        first = [source, *([] if number == whole else first)]
        seen = [root, *([] if number == then_whole else seen)]
    return LayerStack(seen)


def links(files: LayerStack) -> set[frozenset[bytes]]:
    """Return the paths of each file that has several."""
    found = dict[int, set[bytes]]()
    for path, place in files.walk():
        if stat.S_ISREG(os.lstat(place).st_mode):
            found.setdefault(os.lstat(place).st_ino, set()).add(path)
    return {frozenset(paths) for paths in found.values() if len(paths) > 1}


def shown(files: LayerStack) -> dict[str, tuple[str, int, float, str]]:
    """Path -> kind, mode and time of a file, and its content or target. Time 0: of a folder that was made without an entry."""
    found = {}
    for path, place in files.walk():
        info, text = os.lstat(place), ""
        if stat.S_ISLNK(info.st_mode):
            text = os.fsdecode(os.readlink(place))
        elif stat.S_ISREG(info.st_mode):
            text = Path(os.fsdecode(place)).read_text()
        mode = 0 if stat.S_ISLNK(info.st_mode) else stat.S_IMODE(info.st_mode)
        time = info.st_mtime if info.st_mtime < 1_700_000_000 else 0.0
        found[os.fsdecode(path)] = stat.filemode(info.st_mode)[0], mode, time, text
    return found


def contents(files: LayerStack) -> dict[str, str]:
    """Path -> content of a file, target of a link, or nothing for a folder, as in `CASES`."""
    return {path: f"-> {text}" if kind == "l" else text for path, (kind, _, _, text) in shown(files).items()}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_shows_the_same_files_in_each_order_of_its_entries(tmp_path: Path, case: str) -> None:
    below, above, expected = CASES[case]
    for number, order in enumerate(permutations(above)):
        names = [name for name, _ in order]
        assert contents(differences(tmp_path / f"d{number}", [below, order])) == expected, names
        assert contents(differences(tmp_path / f"w{number}", [below, order], whole=1)) == expected, names


def _layer(chosen: random.Random) -> Entries:
    """Return a layer whose entries hit each other's paths and those of other layers."""
    entries = list[tuple[str, Any]]()
    for number in range(chosen.randint(1, 8)):
        path = "/".join(chosen.choice(NAMES) for _ in range(chosen.choice((1, 1, 2, 2, 3))))
        above, _, name = path.rpartition("/")
        folder = f"{above}/" if above else ""
        other = "/".join(chosen.choice(NAMES) for _ in range(chosen.choice((1, 2))))
        linked = f"{other}/x" if other == path else other
        entries.append(
            chosen.choice([
                (path, f"{number} {chosen.random()}".encode()), (path, f"{number}".encode()),
                (path, {"type": b"5", "mode": chosen.choice((0o755, 0o700, 0o1777, 0)), "mtime": 1_500_000_000 + number}),
                (path, {"type": b"5", "mode": 0o755, "mtime": 1_500_000_000 + number}),
                (path, symlink(chosen.choice((other, f"/{other}", f"../{other}")))), (path, hard_link(linked)),
                (f"{folder}.wh.{name}", b""), (f"{folder}.wh.{name}", b""), (f"{folder}.wh..wh..opq", b""),
            ])
        )  # fmt: skip
    return entries


def _plain(folder: Path, chosen: random.Random) -> tuple[list[Entries], LayerStack]:
    """Return random layers, and what a plain unpack makes of them."""
    layers, root, wanted = list[Entries](), folder / "0", chosen.randint(2, 5)
    folder.mkdir()
    for number in range(200):
        layer = _layer(chosen)
        with contextlib.suppress(BrokenArchive, NotADirectoryError):  # a file below a file, or a link to nothing
            root = unpack(folder / f"{number}", *layers, layer)
            layers.append(layer)
        if len(layers) == wanted:
            break
    return layers, LayerStack([root])


def _compare(folder: Path, seed: int) -> None:
    chosen = random.Random(seed)
    layers, plain = _plain(folder / f"plain{seed}", chosen)
    for whole in (None, chosen.randrange(1, len(layers))):
        files = differences(folder / f"layers{seed}-{whole}", layers, whole)
        mine, expected = shown(files), shown(plain)
        for path, (kind, mode, time, text) in expected.items():
            # a plain unpack gives a folder that comes back without an entry the time that an earlier layer gave it
            if kind == "d" and time and path in mine and not mine[path][2]:
                expected[path] = kind, mode, 0.0, text
        assert mine == expected, (seed, whole, layers)
        for then_whole in (None, chosen.randrange(1, len(layers))):
            again = packed_and_unpacked(folder / f"layers{seed}-{whole}", len(layers), whole, then_whole)
            assert shown(again) == shown(files), (seed, whole, then_whole, layers)
            assert links(again) == links(files), (seed, whole, then_whole, layers)


@pytest.mark.parametrize("count", [40, pytest.param(3_000, marks=pytest.mark.long)])
def test_random_layers_show_the_files_of_a_plain_unpack(tmp_path: Path, count: int) -> None:
    for seed in range(count):
        _compare(tmp_path, seed)


def test_a_link_to_a_file_of_a_layer_below_is_one_file_with_it(tmp_path: Path) -> None:
    below: Entries = [("bin", None), ("bin/tool", b"text")]
    files = differences(tmp_path / "layers", [below, [("one", hard_link("bin/tool")), ("two", hard_link("one"))]])
    places = [files.find(name) for name in (b"bin/tool", b"one", b"two")]
    assert len({os.stat(place).st_ino for place in places if place}) == 1
    assert os.stat(tmp_path / "layers/0/bin/tool").st_nlink == 1, (
        "a running sandbox shows it, and would take it for changed"
    )


@pytest.mark.parametrize("times", [1, 2])
async def test_a_file_that_cannot_be_unpacked_is_asked_for_once_more(open_folder: Path, times: int) -> None:
    """The file of a layer may have been damaged after it was verified."""
    for name in ("layers", "filling", "locks"):
        (open_folder / name).mkdir(mode=0o755)
    layers = UnpackedLayers(
        open_folder / "layers",
        open_folder / "filling",
        open_folder / "locks",
        lambda path: shutil.rmtree(path, ignore_errors=True),
        bool,
    )
    data, asked = tar(("file", b"content")), list[Sequence[int]]()

    async def fetch(numbers: Sequence[int]) -> Sequence[Path]:
        asked.append(numbers)
        file = open_folder / f"layer-{len(asked)}"
        file.write_bytes(data[: len(data) if len(asked) > times else 700])
        return [file]

    names = layer_names(["sha256:1"])
    with open(open_folder / "lock", "w") as lock, HeldLayers(layers) as held:
        room = FillRoom(1 << 20, lock.fileno())
        if times > 1:
            with pytest.raises(BrokenLayer):
                await held.complete("image", names, fetch, room)
        else:
            (layer,) = await held.complete("image", names, fetch, room)
            assert (layers.root(layer.name) / "file").read_bytes() == b"content"
    assert len(asked) == 2

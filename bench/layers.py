"""Images of layers that lie once on a node, beside whole copies and images of one folder.

    python -m bench.layers [--images 200] [--starts 20] [--at-once 50] [--waves 0] [--folder /tmp] [--ordinary]

The images are on three bases. A base has six layers of files of this machine's /usr, and each image three more: new files, a
changed one, and a removed one. All lie in an OCI layout.

- Disk: the node's cache with all images, beside the bases and the differences each alone, and beside whole copies (the sum is
  worked out from one copy on each base).
- Shared folder: all images there, beside the bases and the differences, each packed alone.
- Unpack: the first image on a base and a further one, beside a plain unpack of all its layers into one folder.
- Cold start to the first answer of bash, one at a time and many at once, beside an image of one folder with the same files.
- `--waves N`: N sandboxes in waves, the processes that see a mount of theirs afterwards, and the pinned images.
- `--ordinary`: started by root, runs all of this as the user `nobody`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from bench.images import files_of_usr
from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.images.base import FillRoom
from rollyard.images.blob_store import BlobStore
from rollyard.images.cache import ImageCache
from rollyard.images.cache_folder import CacheFolder
from rollyard.images.flat_packer import pack
from rollyard.images.layer_unpacker import LayerUnpacker
from rollyard.images.layout_source import LayoutSource, place_of
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.images.shared_tier import SharedTier
from rollyard.images.tree_size import bytes_on_disk
from rollyard.images.unpack import unpack_layers
from rollyard.images.unpacked_layers import HeldLayers
from rollyard.kinds.values.image_reference import LayoutImage, parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.images.test_local_files import LayoutMaker
from tests.support.host_processes import seers_of_mounts
from tests.support.open_python import ROOT
from tests.support.ordinary_user import ordinary_user

BASES, BASE_LAYERS, ROUNDS = 3, 6, 5
LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)


class Images:
    """The images in a layout, and the files of their layers."""

    def __init__(self, folder: Path, count: int, base_bytes: int) -> None:
        self._maker = LayoutMaker(folder)
        self._folder = folder
        files, _ = files_of_usr(base_bytes * BASES)
        self.bases = [self._base(files[number::BASES]) for number in range(BASES)]
        self.own = [self._own(number, files[number % BASES], files[number % BASES + BASES]) for number in range(count)]
        for number, own in enumerate(self.own):
            self._maker.image(f"v{number}", *self.bases[number % BASES], *own)

    def name(self, number: int) -> str:
        return f"oci:{self._folder}:v{number}"

    def layers(self, number: int) -> list[bytes]:
        return [*self.bases[number % BASES], *self.own[number]]

    def _base(self, files: Sequence[str]) -> list[bytes]:
        return [_packed([(path, None) for path in files[part::BASE_LAYERS]]) for part in range(BASE_LAYERS)]

    def _own(self, number: int, changed: str, gone: str) -> list[bytes]:
        new = [(f"repo/{number}/{name}", os.urandom(1 << 14)) for name in range(60)]
        above, _, removed = gone.rpartition("/")
        return [
            _packed(new),
            _packed([(changed, b"changed")]),
            _packed([(f"{above}/.wh.{removed}", b""), ("mark", b"1")]),
        ]


def _packed(files: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Pack contents, or files of this machine, as a layer."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, content in files:
            info = tarfile.TarInfo(path)
            read = Path("/", path).read_bytes() if content is None else content
            info.size, info.mode, info.mtime = len(read), 0o755, 1_600_000_000
            archive.addfile(info, io.BytesIO(read))
    return gzip.compress(data.getvalue(), 1, mtime=0)


def row(name: str, ours: float, baseline: float, unit: str) -> None:
    print(f"  {name:<58}{ours:>10.2f}{baseline:>10.2f} {unit:<3}{ours / baseline:>8.3f}x", flush=True)


def head(title: str) -> None:
    print(f"\n{title}; load {os.getloadavg()[0]:.1f}\n  {'':<58}{'ours':>10}{'baseline':>10}{'ratio':>13}", flush=True)


async def plain(folder: Path, name: str, layers: Sequence[bytes]) -> Path:
    """Unpack layers into one folder, as images are unpacked that have a folder each."""
    files = []
    for number, layer in enumerate(layers):
        files.append(folder / f"{name}-{number}")
        files[-1].write_bytes(layer)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        await unpack_layers(name, files, folder / name, FillRoom(1 << 50, lock))
    finally:
        os.close(lock)
        for file in files:
            file.unlink()
    return folder / name


def alone(folder: Path, layer: bytes) -> int:
    """Return the bytes on disk of one layer with nothing below it."""
    folder.mkdir()
    unpacker = LayerUnpacker(str(folder), 1 << 50)
    unpacker.apply(iter([gzip.decompress(layer)]))
    size = bytes_on_disk(folder)
    shutil.rmtree(folder)
    return size


def packed_bytes(root: Path) -> int:
    """Return the bytes of a folder as a file of the shared folder."""
    file = io.BytesIO()
    pack(str(root), file)
    return len(file.getvalue())


async def shared_folder(images: Images, count: int, cache: Path, work: Path) -> None:
    """Write all images of the node's cache into a shared folder."""
    tier, layers, ideal = SharedTier(work / "tier"), CacheFolder(cache).layers, 0
    blobs, names = BlobStore(cache / "blobs", cache / "locks"), ResolvedTags(cache / "names")
    room = FillRoom(1 << 50, os.open(work / "lock", os.O_RDWR | os.O_CREAT))
    started = time.perf_counter()
    for number in range(count):
        reference = parse_image(images.name(number))
        assert isinstance(reference, LayoutImage)
        source = LayoutSource(place_of(reference), blobs, names)
        with HeldLayers(layers, tier.layers) as held:
            await tier.fill(source, await source.key(), work, room, held)
    seconds = time.perf_counter() - started
    os.close(room.lock_fd)
    for number in range(BASES):
        base = await plain(work, f"base{number}", images.bases[number])
        ideal += packed_bytes(base)
        shutil.rmtree(base)
    for number in range(count):
        own = await plain(work, f"own{number}", images.own[number])
        ideal += packed_bytes(own)
        shutil.rmtree(own)
    assert all(one.parts for one in tier.images())
    head(f"shared folder with {len(tier.images())} images on {BASES} bases, written in {seconds:.0f} s")
    row("beside the bases and the differences, each packed alone", tier.bytes() / 1e6, ideal / 1e6, "MB")
    shutil.rmtree(work / "tier")


async def disk(images: Images, count: int, cache: ImageCache, folder: Path, work: Path) -> list[Path]:
    """Fill the cache. Return a plain unpack of one image on each base."""
    whole, ideal, seconds = list[Path](), 0, dict[str, list[float]]()
    for number in range(BASES):
        started = time.perf_counter()
        whole.append(await plain(work, f"whole{number}", images.layers(number)))
        seconds.setdefault("plain", []).append(time.perf_counter() - started)
        started = time.perf_counter()
        await cache.prefetch(parse_image(images.name(number)))
        seconds.setdefault("first", []).append(time.perf_counter() - started)
        base = await plain(work, f"base{number}", images.bases[number])
        ideal += bytes_on_disk(base)
        shutil.rmtree(base)
    for number in range(BASES, count):
        started = time.perf_counter()
        await cache.prefetch(parse_image(images.name(number)))
        seconds.setdefault("further", []).append(time.perf_counter() - started)
    for number, own in enumerate(images.own):
        for part, layer in enumerate(own):
            ideal += alone(work / f"own{number}-{part}", layer)
    ours = bytes_on_disk(folder / "layers") + bytes_on_disk(folder / "entries")
    copies = sum(bytes_on_disk(whole[number % BASES]) for number in range(count))
    head(f"disk of {count} images on {BASES} bases")
    row("beside the bases and the differences, each alone", ours / 1e6, ideal / 1e6, "MB")
    row("beside whole copies", ours / 1e6, copies / 1e6, "MB")
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    head("pull and unpack of one image")
    row("the first on a base, beside a plain unpack", medians["first"], medians["plain"], "s")
    row("a further one, beside a plain unpack", medians["further"], medians["plain"], "s")
    return whole


async def _start(sandboxes: SandboxFactory, image: str) -> float:
    started = time.perf_counter()
    async with await sandboxes.start(SandboxSpec(parse_image(image), LIMITS)) as sandbox:
        assert (await sandbox.bash("echo hi", 60)).output == "hi\n"
        return time.perf_counter() - started


async def _at_once(sandboxes: SandboxFactory, names: Sequence[str], count: int) -> float:
    started = time.perf_counter()
    specs = [SandboxSpec(parse_image(names[number % len(names)]), LIMITS) for number in range(count)]
    found = await asyncio.gather(*(sandboxes.start(spec) for spec in specs))
    await asyncio.gather(*(one.bash("echo hi", 60) for one in found))
    taken = time.perf_counter() - started
    await asyncio.gather(*(one.close() for one in found))
    return taken


async def starts(
    runtime: Runtime, cache: Path, images: Images, whole: Sequence[Path], options: argparse.Namespace
) -> None:
    layered, folders = [images.name(number) for number in range(BASES)], list(map(str, whole))
    async with SandboxFactory(runtime, cache=cache) as sandboxes:
        one = list[float](), list[float]()
        many = list[float](), list[float]()
        for name in (*layered, *folders):
            await _start(sandboxes, name)
        for number in range(options.starts):
            one[0].append(await _start(sandboxes, layered[number % BASES]))
            one[1].append(await _start(sandboxes, folders[number % BASES]))
        for _ in range(ROUNDS):
            many[0].append(await _at_once(sandboxes, layered, options.at_once))
            many[1].append(await _at_once(sandboxes, folders, options.at_once))
        head(f"start to the first answer with {runtime.name}, beside an image of one folder (medians)")
        row("one at a time", *(statistics.median(found) * 1000 for found in one), "ms")
        row(f"{options.at_once} at once", *(statistics.median(found) * 1000 for found in many), "ms")
        if options.waves:
            await waves(sandboxes, cache, [images.name(number) for number in range(options.images)], options)


async def waves(sandboxes: SandboxFactory, folder: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    before = time.perf_counter()
    for done in range(0, options.waves, options.at_once):
        chosen = [names[(done + number) % len(names)] for number in range(options.at_once)]
        found = await asyncio.gather(*(sandboxes.start(SandboxSpec(parse_image(name), LIMITS)) for name in chosen))
        await asyncio.gather(*(one.close() for one in found))
    seconds = time.perf_counter() - before
    left = len(list(seers_of_mounts(folder)))
    pinned = sum(one.pinned for one in sandboxes.images.cache.entries())
    print(
        f"  {options.waves} sandboxes in {seconds:.0f} s; processes with a mount left: {left}; pinned images: {pinned}"
    )


async def main(folder: Path, options: argparse.Namespace) -> None:
    cache, work = folder / "cache", folder / "work"
    for made in (cache, work):
        made.mkdir(mode=0o755)
    for shared in (own_python(node_cache()), node_cache() / "apptainer"):
        (cache / shared.name).symlink_to(shared)
    images = Images(folder / "layout", options.images, options.base_bytes)
    whole = await disk(images, options.images, ImageCache(cache / "image-cache"), cache / "image-cache", work)
    await shared_folder(images, options.images, cache / "image-cache", work)
    for name in get_args(RuntimeName) if options.starts else ():
        if name in ("bubblewrap", "apptainer"):
            try:
                runtime = find_runtime(name, cache)
            except SandboxStartFailed as error:
                print(f"\n{name}: {error}")
                continue
            await starts(runtime, cache, images, whole, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--base-bytes", type=int, default=100_000_000)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--waves", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--ordinary", action="store_true")
    asked = parser.parse_args()
    if asked.ordinary and os.geteuid() == 0:
        user = ordinary_user()
        sys.exit(
            subprocess.run(
                [user.python, "-m", "bench.layers", *sys.argv[1:]], cwd=ROOT, env={**os.environ, **user.environment},
                check=False, **user.credentials,
            ).returncode
        )  # fmt: skip
    place = Path(tempfile.mkdtemp(dir=asked.folder))
    place.chmod(0o755)
    try:
        asyncio.run(main(place, asked))
    finally:
        shutil.rmtree(place)

"""An image of 1 GB: its pull from a registry, and its way to further node agents over a shared folder.

    python -m bench.images [--bytes 1000000000] [--nodes 8] [--folder /tmp] [--rounds 3]

The image has files of this machine's /usr, in one layer. The registry is Debian's docker-registry on this machine. The node
agents are caches of their own on this machine's disk, each with processes of its own, and share a folder on the same disk.

- The pull from the registry, beside `tar -xzf` of the layer alone, and beside skopeo and umoci if they are installed.
- Node agents with the image in the shared folder, beside `cp -r` of the unpacked image: one beside one copy, all at once
  beside as many copies at once. Each is measured in turn, with `sync` before.
- The number of requests that the registry saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from rollyard.kinds.sandbox_template import SandboxImages
from rollyard.node.images.cache import ImageCache
from rollyard.node.images.oci_manifest import machine
from tests.support.image_registry import Front, Pusher, running_registry


async def timed(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def run(*argv: object) -> None:
    process = await asyncio.create_subprocess_exec(*map(str, argv), stdout=subprocess.DEVNULL)
    assert await process.wait() == 0, argv


def files_of_usr(most: int) -> tuple[list[str], int]:
    """Return paths below / with this sum of lengths, and the sum."""
    total, found = 0, []
    for above, folders, names in os.walk("/usr"):
        folders.sort()
        for path in (os.path.join(above, name) for name in sorted(names)):
            if os.path.isfile(path) and not os.path.islink(path) and total + os.path.getsize(path) <= most:
                total += os.path.getsize(path)
                found.append(path[1:])
    return found, total


def make_layer(folder: Path, most: int) -> Path:
    files, total = files_of_usr(most)
    (folder / "list").write_text("\0".join(files))
    layer = folder / "layer.tar.gz"
    with open(layer, "wb") as file:
        tar = subprocess.Popen(["tar", "-cC", "/", "--null", "-T", folder / "list"], stdout=subprocess.PIPE)
        subprocess.run(["gzip", "-1"], stdin=tar.stdout, stdout=file, check=True)
        assert tar.wait() == 0
    print(f"image: {len(files)} files, {total / 1e6:.0f} MB; its layer {layer.stat().st_size / 1e6:.0f} MB")
    return layer


def push(registry: Pusher, layer: Path) -> None:
    packed = layer.read_bytes()
    content = subprocess.run(f"gzip -dc {layer} | sha256sum", shell=True, check=True, stdout=subprocess.PIPE).stdout
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{content.split()[0].decode()}"]}
    config = {"architecture": machine(), "os": "linux", "config": {}, "rootfs": rootfs}
    manifest = registry.manifest_of("bench/image", [packed])
    digest, size = registry.blob("bench/image", json.dumps(config).encode())
    manifest["config"] |= {"digest": digest, "size": size}
    registry.manifest("bench/image", "v1", manifest)


async def measured(name: str, folder: Path, work: Callable[[Path], Awaitable[object]], rounds: int) -> float:
    """Print and return the median of the seconds. `work` fills a folder, which is deleted afterwards."""
    seconds = []
    for number in range(rounds):
        place = folder / f"place{number}"
        place.mkdir()
        await run("sync")
        seconds.append(await timed(work(place)))
        shutil.rmtree(place)
    median = statistics.median(seconds)
    print(f"  {name:<58}{median:>8.2f} s   ({', '.join(f'{one:.2f}' for one in sorted(seconds))})", flush=True)
    return median


async def pulls(image: str, layer: Path, folder: Path, rounds: int) -> None:
    print("\npull of the image from the registry")

    async def ours(place: Path) -> None:
        with await ImageCache(place / "cache").get(image):
            pass

    async def tools(place: Path) -> None:
        await run("skopeo", "copy", "-q", "--src-tls-verify=false", image, f"oci:{place}/layout:v1")
        await run("umoci", "--log=fatal", "unpack", "--rootless", "--image", f"{place}/layout:v1", place / "bundle")

    own = await measured("a node agent", folder, ours, rounds)
    tar = await measured("tar -xzf of the layer alone", folder, lambda at: run("tar", "-xzf", layer, "-C", at), rounds)
    print(f"  {'ratio':<58}{own / tar:>8.2f} x")
    if shutil.which("skopeo") and shutil.which("umoci"):
        other = await measured("skopeo copy and umoci unpack", folder, tools, rounds)
        print(f"  {'ratio':<58}{own / other:>8.2f} x")


async def shared(image: str, count: int, folder: Path, rounds: int) -> None:
    print("\nthe image in the shared folder")
    settings = SandboxImages(shared_folder=str(folder / "tier"))
    started = time.perf_counter()
    first = ImageCache(folder / "first", settings)
    held = await first.get(image)
    print(f"  {'the node agent that pulls it and writes it there':<58}{time.perf_counter() - started:>8.2f} s")
    (file,) = (folder / "tier/images").iterdir()
    print(f"  {'its file there':<58}{file.stat().st_size / 1e6:>8.0f} MB")

    async def fill(place: Path, nodes: int) -> None:
        caches = [ImageCache(place / f"node{number}", settings) for number in range(nodes)]
        await asyncio.gather(*(cache.stage(image) for cache in caches))

    async def copy(place: Path, nodes: int) -> None:
        await asyncio.gather(*(run("cp", "-r", held.root, place / f"copy{number}") for number in range(nodes)))

    for nodes in sorted({1, count}):
        own = await measured(f"{nodes} further node agents at once", folder, lambda at, n=nodes: fill(at, n), rounds)  # type: ignore[misc]
        copies = await measured(f"{nodes} local copies at once", folder, lambda at, n=nodes: copy(at, n), rounds)  # type: ignore[misc]
        print(f"  {'ratio':<58}{own / copies:>8.2f} x")
    held.release()


async def main(size: int, nodes: int, folder: Path, rounds: int) -> None:
    for name in ("registry", "work"):
        (folder / name).mkdir()
    with running_registry(folder / "registry") as host:
        layer = make_layer(folder, size)
        push(Pusher(host), layer)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {rounds} rounds, medians")
        await pulls(f"docker://{host}/bench/image:v1", layer, folder / "work", rounds)
        await shared(f"docker://{host}/bench/image:v1", nodes, folder / "work", rounds)
        async with Front(host) as front:
            caches = [
                ImageCache(folder / f"many/{number}", SandboxImages(shared_folder=str(folder / "tier2")))
                for number in range(nodes)
            ]
            print(f"\n{nodes} node agents at once, none has the image, and the shared folder is empty")
            seconds = await timed(
                asyncio.gather(*(one.stage(f"docker://{front.host}/bench/image:v1") for one in caches))
            )
            print(f"  {'all have it after':<58}{seconds:>8.2f} s")
            print(f"  {'downloads of the layer':<58}{front.count('blobs') - 1:>8}")


def folders(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on a local disk")
    asked = parser.parse_args()
    for made in folders(asked.folder):
        asyncio.run(main(asked.bytes, asked.nodes, made, asked.rounds))

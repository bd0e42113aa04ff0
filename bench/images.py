"""An image of 1 GB: its pull from a registry, and its way to further node agents over a shared folder.

    python -m bench.images [--bytes 1000000000] [--nodes 8] [--folder /tmp] [--rounds 3] [--without-tools]

The image has 20,000 small files of this machine's /usr and as many larger ones as fit, in one layer. The registry is Debian's
docker-registry on this machine. The node agents are processes, each with a cache of its own on this machine's disk. They
share a folder on the same disk. Their clock starts when their imports are done.

- The pull from the registry, beside `tar -xzf` of the layer alone, and beside skopeo and umoci if they are installed.
- Further node agents when the image is in the shared folder: one beside one `cp -r` of the unpacked image, and all at once
  beside as many copies at once. The four are measured in turn in each round. Before each, `sync` writes what is left of the
  one before, and what will be read is read once, so it comes from memory.
- The same number of node agents that pull from the registry at once, without a shared folder.
- The number of downloads that the registry sees if all node agents begin with an empty shared folder.

`CPU` is the processor time of all processes together; other work on the machine changes it less than the seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.images.cache import ImageCache
from rollyard.images.oci_manifest import machine
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_registry import Front, Pusher, running_registry

SMALL_FILES, SMALL_BYTES = 20_000, 1 << 16


# the image


def files_of_usr(most: int) -> tuple[list[str], int]:
    """Return paths below / whose lengths have at most this sum, and the sum: small files, evenly chosen, then larger ones."""
    small, large, total, found = list[tuple[str, int]](), list[tuple[str, int]](), 0, list[str]()
    for above, folders, names in os.walk("/usr"):
        folders.sort()
        for path in (os.path.join(above, name) for name in sorted(names)):
            if os.path.isfile(path) and not os.path.islink(path):
                size = os.path.getsize(path)
                (small if size <= SMALL_BYTES else large).append((path[1:], size))
    for path, size in (*small[:: max(1, len(small) // SMALL_FILES)][:SMALL_FILES], *large[::2]):
        if total + size <= most:
            total += size
            found.append(path)
    return sorted(found), total


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


# node agents, and what they are compared with


async def be_node(folder: Path, image: str, tier: str | None) -> None:
    """Get the image when a line comes, and print the processor time of it."""
    cache = ImageCache(folder, CacheSettings(shared_folder=tier))
    print("ready", flush=True)
    sys.stdin.readline()
    before = cpu_seconds(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    await cache.prefetch(parse_image(image))
    print(cpu_seconds(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) - before, flush=True)


def cpu_seconds(*whose: int) -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, whose))


@dataclass
class Nodes:
    """Node agents that have started and wait for their signal."""

    processes: Sequence[asyncio.subprocess.Process]

    async def get(self) -> float:
        """Let all get the image. Return their processor time."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
        return sum([float(await _line(process)) for process in self.processes])


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line, "a node agent failed"
    return line


@asynccontextmanager
async def nodes(place: Path, count: int, image: str, tier: Path | None) -> AsyncIterator[Nodes]:
    argv = [
        sys.executable,
        "-m",
        "bench.images",
        "--image",
        image,
        *(("--tier", str(tier)) if tier is not None else ()),
    ]
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(*argv, "--node", str(place / f"node{number}"), stdin=pipe, stdout=pipe)
        for number in range(count)
    ]
    try:
        for process in processes:
            await _line(process)
        yield Nodes(processes)
    except BaseException:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
        raise
    finally:
        for process in processes:
            await process.wait()


async def run(*argv: object) -> None:
    process = await asyncio.create_subprocess_exec(*map(str, argv), stdout=subprocess.DEVNULL)
    assert await process.wait() == 0, argv


async def copies(place: Path, count: int, root: Path) -> float:
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    await asyncio.gather(*(run("cp", "-r", root, place / f"copy{number}") for number in range(count)))
    return cpu_seconds(resource.RUSAGE_CHILDREN) - before


# measurement


@dataclass
class Times:
    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def show(self) -> None:
        cpu = f"CPU {statistics.median(self.cpu):6.2f} s" if self.cpu else ""
        print(
            f"  {self.name:<56}{self.median:>8.2f} s   {cpu:<13}   ({', '.join(f'{one:.2f}' for one in self.seconds)})",
            flush=True,
        )


def show_ratio(one: Times, other: Times, name: str = "ratio") -> None:
    pairs = [a / b for a, b in zip(one.seconds, other.seconds, strict=False)]
    print(
        f"  {name:<56}{one.median / other.median:>8.2f} x   ({', '.join(f'{pair:.2f}' for pair in pairs)})", flush=True
    )


async def clocked(times: Times, work: Awaitable[float | None]) -> None:
    started = time.perf_counter()
    cpu = await work
    times.seconds.append(time.perf_counter() - started)
    if cpu is not None:
        times.cpu.append(cpu)


@asynccontextmanager
async def fresh(folder: Path, *read: Path) -> AsyncIterator[Path]:
    """Yield an empty folder, which is deleted afterwards. Nothing is left to be written, and `read` is in memory."""
    await run("sync")
    for path in read:
        await run("sh", "-c", f"tar -cC {path} . | cat > /dev/null")
    place = folder / "place"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


async def pulls(image: str, layer: Path, folder: Path, rounds: int, tools: bool) -> None:
    print(f"\npull of the image from the registry; {_load()}")

    async def own(place: Path, times: Times) -> None:
        async with nodes(place, 1, image, None) as one:
            await clocked(times, one.get())

    async def tar(place: Path, times: Times) -> None:
        await clocked(times, run("tar", "-xzf", layer, "-C", place))

    async def others(place: Path, times: Times) -> None:
        async def both() -> None:
            await run("skopeo", "copy", "-q", "--src-tls-verify=false", image, f"oci:{place}/layout:v1")
            await run("umoci", "--log=fatal", "unpack", "--rootless", "--image", f"{place}/layout:v1", place / "bundle")

        await clocked(times, both())

    measured: list[tuple[Times, Callable[[Path, Times], Awaitable[None]]]] = [
        (Times("a node agent"), own),
        (Times("tar -xzf of the layer alone"), tar),
    ]
    if tools and shutil.which("skopeo") and shutil.which("umoci"):
        measured.append((Times("skopeo copy and umoci unpack"), others))
    for _ in range(rounds):
        for times, work in measured:
            async with fresh(folder) as place:
                await work(place, times)
    for times, _ in measured:
        times.show()
        if times is not measured[0][0]:
            show_ratio(measured[0][0], times)


async def shared(image: str, count: int, folder: Path, rounds: int) -> None:
    print(f"\nthe image in the shared folder; {_load()}")
    tier = folder / "tier"
    first = Times("the node agent that pulls it and writes it there")
    async with nodes(folder / "first", 1, image, tier) as one:
        await clocked(first, one.get())
    first.show()
    (file,) = (tier / "layers").iterdir()
    print(f"  {'its file there':<56}{file.stat().st_size / 1e6:>8.0f} MB")
    (layer,) = (folder / "first/node0/layers").iterdir()
    root, further = layer / "root", count - 1
    own = {number: Times(f"{number} further node agent{'s at once' * (number > 1)}") for number in (1, further)}
    copied = {number: Times(f"{number} cp -r{' at once' * (number > 1)}") for number in (1, further)}
    for _ in range(rounds):
        for number in sorted(own):
            async with fresh(folder, tier / "layers") as place, nodes(place, number, image, tier) as started:
                await clocked(own[number], started.get())
            async with fresh(folder, root) as place:
                await clocked(copied[number], copies(place, number, root))
    for number in sorted(own):
        own[number].show()
        copied[number].show()
        show_ratio(own[number], copied[number])
    if further > 1:
        show_ratio(own[further], copied[1], f"{further} further node agents, beside one cp -r alone")
    pulled = Times(f"{count} node agents at once without the shared folder")
    shutil.rmtree(folder / "first")
    async with fresh(folder) as place, nodes(place, count, image, None) as started:
        await clocked(pulled, started.get())
    pulled.show()
    show_ratio(own[further], pulled)


async def pulled_once(image: str, front: Front, count: int, folder: Path) -> None:
    print(f"\n{count} node agents at once, none has the image, and the shared folder is empty; {_load()}")
    async with fresh(folder) as place, nodes(place, count, image, place / "tier") as started:
        every = Times("all have it after")
        await clocked(every, started.get())
    every.show()
    print(f"  {'downloads of the layer':<56}{front.count('blobs') - 1:>8}")


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def check_room(folder: Path, most: int, count: int) -> None:
    """Exit with a sentence if the image does not fit so often."""
    free, needed = shutil.disk_usage(folder).free, int(most * (1.6 * count + 4))
    kind = subprocess.run(["stat", "-fc", "%T", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    if kind.strip() == "tmpfs":
        (line,) = (one for one in Path("/proc/meminfo").read_text().splitlines() if one.startswith("MemAvailable"))
        free = min(free, int(line.split()[1]) * 1024)
    if free < needed:
        sys.exit(
            f"{folder} has {free / 1e9:.0f} GB, and {needed / 1e9:.0f} GB are needed: write another --folder or fewer --bytes"
        )


async def main(size: int, count: int, folder: Path, rounds: int, tools: bool) -> None:
    check_room(folder, size, count)
    for name in ("registry", "work"):
        (folder / name).mkdir()
    with running_registry(folder / "registry") as host:
        layer = make_layer(folder, size)
        push(Pusher(host), layer)
        image = f"docker://{host}/bench/image:v1"
        await pulls(image, layer, folder / "work", rounds, tools)
        await shared(image, count, folder / "work", rounds)
        async with Front(host) as front:
            await pulled_once(f"docker://{front.host}/bench/image:v1", front, count, folder / "work")


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
    parser.add_argument("--without-tools", action="store_true", help="leave out skopeo and umoci")
    for hidden in ("--node", "--image", "--tier"):  # the process of one node agent
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.node:
        asyncio.run(be_node(Path(asked.node), asked.image, asked.tier))
    else:
        for made in folders(asked.folder):
            asyncio.run(main(asked.bytes, asked.nodes, made, asked.rounds, not asked.without_tools))

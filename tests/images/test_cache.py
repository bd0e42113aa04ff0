"""The cache of a node: several processes, processes that are killed, the bound, and a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from rollyard.images import cache_room
from rollyard.images.cache import ImageCache
from rollyard.images.cache_folder import CacheFolder
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import names, place
from tests.support.image_registry import BASE, Front, Pusher, digest, gz, tar

_PULL = """
import asyncio, sys
from pathlib import Path
from rollyard.images.cache import ImageCache
from rollyard.kinds.values.image_reference import parse_image

async def main():
    image = await ImageCache(Path(sys.argv[1])).get(parse_image(sys.argv[2]))
    print(image.digest, image.files.find(b"etc/name") is not None, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@contextlib.contextmanager
def _process(cache: Path, image: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another node agent, which pulls an image and pins it until the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PULL, cache, image], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _big(mebibytes: int = 1) -> bytes:
    return gz(tar(("big", os.urandom(mebibytes << 20))))


async def test_two_processes_and_ten_tasks_pull_once(registry: Pusher, front: Front, open_folder: Path) -> None:
    layer = _big()
    registry.image("cache/once", "v1", [BASE, layer])
    folder, name = open_folder / "cache", f"docker://{front.host}/cache/once:v1"
    cache = ImageCache(folder)
    with _process(folder, name) as one, _process(folder, name) as two:
        images = await asyncio.gather(*(cache.get(parse_image(name)) for _ in range(10)))
        lines = [await asyncio.to_thread(process.stdout.readline) for process in (one, two) if process.stdout]
        assert lines == [f"{images[0].digest} True\n".encode()] * 2
        assert front.count(digest(layer)) == 1
        for image in images:
            image.release()
        assert [entry.pinned for entry in cache.entries()] == [True]
    assert [entry.pinned for entry in cache.entries()] == [False]


async def test_an_image_is_had_at_once_although_the_process_that_filled_it_keeps_it(
    registry: Pusher, front: Front, open_folder: Path
) -> None:
    registry.image("cache/kept", "v1", [BASE, gz(tar(("kept", b"x")))])
    front.faults.append(("cache/kept/blobs", "slow 1", 1))
    name = f"docker://{front.host}/cache/kept:v1"
    first, second = ImageCache(open_folder / "cache"), ImageCache(open_folder / "cache")
    images = await asyncio.wait_for(asyncio.gather(first.get(parse_image(name)), second.get(parse_image(name))), 60)
    assert images[0].layers == images[1].layers
    for image in images:
        image.release()


async def test_a_cancelled_caller_does_not_end_the_pull(registry: Pusher, front: Front, cache: ImageCache) -> None:
    layer = _big()
    registry.image("cache/cancel", "v1", [BASE, layer])
    name = f"docker://{front.host}/cache/cancel:v1"
    task = asyncio.create_task(cache.get(parse_image(name)))
    while not front.count(digest(layer)):
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with await cache.get(parse_image(name)) as image:
        assert place(image, "big").exists()
    assert front.count(digest(layer)) == 1


async def test_a_filler_killed_while_it_downloads(registry: Pusher, front: Front, open_folder: Path) -> None:
    layer = _big()
    registry.image("cache/killed", "v1", [BASE, layer])
    front.faults.append((digest(layer), "stall", 1))
    folder, name = open_folder / "cache", f"docker://{front.host}/cache/killed:v1"
    with _process(folder, name) as process:
        part = folder / "blobs" / f"{digest(layer).replace(':', '-')}.part"
        while not part.exists() or part.stat().st_size <= 1 << 17:
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.kill()
    assert os.listdir(folder / "entries") == []
    with await ImageCache(folder).get(parse_image(name)) as image:
        assert place(image, "big").stat().st_size == 1 << 20
    assert os.listdir(folder / "filling") == []


async def test_a_filler_killed_while_it_unpacks(registry: Pusher, open_folder: Path) -> None:
    many = gz(tar(*((f"f{number}", b"1") for number in range(5000))))
    registry.image("cache/killed", "v2", [BASE, many])
    folder, name = open_folder / "cache", f"docker://{registry.host}/cache/killed:v2"
    with _process(folder, name) as process:
        while not list((folder / "filling").glob("*/root/f*")):
            assert process.poll() is None
            await asyncio.sleep(0.001)
        process.kill()
        other = ImageCache(folder)  # while the process that unpacks may still live
        with await other.get(parse_image(name)) as image:
            assert len(names(image)) == 5002
    assert os.listdir(folder / "filling") == []
    assert os.listdir(folder / "rubbish") == []


async def test_a_pull_that_is_cancelled_while_it_unpacks_leaves_nothing(registry: Pusher, open_folder: Path) -> None:
    many = gz(tar(*((f"f{number}", b"1") for number in range(5000))))
    registry.image("cache/cancelled", "v1", [BASE, many])
    folder, name = open_folder / "cache", f"docker://{registry.host}/cache/cancelled:v1"
    cache = ImageCache(folder)
    pull = asyncio.create_task(cache.get(parse_image(name)))
    while not list((folder / "filling").glob("*/root/f*")):
        assert not pull.done()
        await asyncio.sleep(0.001)
    pull.cancel()
    await cache.close()
    await asyncio.gather(pull, return_exceptions=True)
    left = {place: os.listdir(folder / place) for place in ("entries", "filling", "rubbish")}
    assert left == {"entries": [], "filling": [], "rubbish": []}
    with await ImageCache(folder).get(parse_image(name)) as image:
        assert len(names(image)) == 5002


async def test_leftovers_of_dead_processes_are_deleted(open_folder: Path) -> None:
    folder = open_folder / "cache"
    first = ImageCache(folder)
    for name in ("filling", "rubbish"):
        (folder / name / "sha256-00" / "root").mkdir(parents=True)
        (folder / name / "sha256-00" / "root" / "file").touch()
    ImageCache(folder)
    assert os.listdir(folder / "filling") == os.listdir(folder / "rubbish") == []
    assert first.entries() == []


async def test_the_bound_deletes_the_least_recently_used_that_nobody_pins(
    registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_room, "ROOM_SECONDS", 0.0)
    names = []
    for number in range(5):
        registry.image("cache/bound", f"v{number}", [BASE, _big()])
        names.append(f"docker://{registry.host}/cache/bound:v{number}")
    folder = open_folder / "cache"
    cache = ImageCache(folder, CacheSettings(cache_bytes=3 << 20))
    held = await cache.get(parse_image(names[0]))
    for number, name in enumerate(names[1:4]):
        await cache.prefetch(parse_image(name))
        (entry,) = (one for one in cache.entries() if one.name == name)
        os.utime(entry.path, (1000 + number, 1000 + number))
        assert sum(entry.bytes for entry in cache.entries()) <= 3 << 20
    assert {entry.name for entry in cache.entries()} == {names[0], names[3]}
    stored = cache.room.storage()
    assert (stored.images, stored.layers, stored.bytes) == (2, 3, cache.room.image_bytes())
    assert stored.unshared_bytes == sum(entry.bytes for entry in cache.entries()) > stored.bytes, "they share a base"
    assert cache.room.evicted_layers == 2
    assert cache.room.evicted_bytes >= 2 << 20
    assert place(held, "big").exists()
    other = ImageCache(folder, CacheSettings(cache_bytes=1 << 20))
    with (
        await cache.get(parse_image(names[3])),
        pytest.raises(ImageUnavailable, match=r"use all images of the full cache: raise"),
    ):
        await other.get(parse_image(names[4]))
    held.release()
    await other.prefetch(parse_image(names[3]))
    with pytest.raises(ImageUnavailable, match=r"needs more than the 1048576 bytes.*cacheSize"):
        await other.prefetch(parse_image(names[4]))


async def test_a_small_blob_that_is_being_written_is_not_evicted(open_folder: Path) -> None:
    cache = ImageCache(open_folder / "cache", CacheSettings(cache_bytes=1))
    writing, left = (open_folder / "cache" / "blobs" / name for name in (".sha256-1.abcd", ".sha256-2.abcd"))
    CacheFolder(open_folder / "cache").make()
    for path in (writing, left):
        path.write_bytes(b"manifest")
    os.utime(left, (1000, 1000))
    await cache.room.make()
    assert (writing.exists(), left.exists()) == (True, False)


async def test_a_full_disk_frees_what_nobody_uses_and_is_named(registry: Pusher, open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = open_folder / "cache"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m,mode=755", "small", folder], check=True)
    try:
        cache = ImageCache(folder)
        for number in (1, 2, 3):
            registry.image("cache/full", f"v{number}", [BASE, _big()])
            await cache.prefetch(parse_image(f"docker://{registry.host}/cache/full:v{number}"))
        registry.image("cache/full", "big", [BASE, _big(4)])
        with pytest.raises(
            ImageUnavailable, match=r"cache/full:big cannot be used now: the disk of .* is full: free some"
        ):
            await cache.prefetch(parse_image(f"docker://{registry.host}/cache/full:big"))
        await cache.prefetch(parse_image(f"docker://{registry.host}/cache/full:v1"))
        with contextlib.suppress(OSError), open(folder / "of somebody else", "wb") as file:
            file.write(bytes(8 << 20))  # so not even the image's manifest can be kept
        await cache.prefetch(parse_image(f"docker://{registry.host}/cache/full:v2"))
        assert not list((folder / "names").glob(".*"))
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_what_a_crash_of_the_machine_left_empty_is_made_again(registry: Pusher, cache: ImageCache) -> None:
    registry.image("cache/crash", "v1", [BASE, gz(tar(("file", b"text")))])
    name = f"docker://{registry.host}/cache/crash:v1"
    await cache.prefetch(parse_image(name))
    with await cache.get(parse_image(name)) as image:
        place(image, "file").write_bytes(b"")
    (entry,) = cache.entries()
    folder = entry.path.parents[1]
    for damaged in (entry.path / "image.json", *folder.glob("layers/*/layer.json"), *(folder / "blobs").iterdir()):
        damaged.write_bytes(b"")
    assert [one.name for one in cache.entries()] == ["(damaged)"]
    with await cache.get(parse_image(name)) as image:
        assert place(image, "file").read_bytes() == b"text"
    assert cache.entries() == [dataclasses.replace(entry, last_used=cache.entries()[0].last_used)]


async def test_files_that_somebody_deletes_are_noticed_and_the_image_is_made_again(
    registry: Pusher, cache: ImageCache
) -> None:
    registry.image("cache/cleaned", "v1", [BASE, gz(tar(("old", None), ("old/file", b"text")))])
    name = f"docker://{registry.host}/cache/cleaned:v1"
    with await cache.get(parse_image(name)) as image:
        image.check_files()
        place(image, "old/file").unlink()
        with pytest.raises(ImageUnavailable, match="1 of its files and folders were deleted from the node's cache"):
            image.check_files()
        with pytest.raises(ImageUnavailable, match="was deleted from the node's cache while rollouts used it"):
            image.check()
    with await cache.get(parse_image(name)) as image:
        assert place(image, "old/file").read_bytes() == b"text"
        image.check_files()


async def test_a_cache_that_somebody_empties_is_filled_again(registry: Pusher, cache: ImageCache) -> None:
    registry.image("cache/emptied", "v1")
    name = f"docker://{registry.host}/cache/emptied:v1"
    with await cache.get(parse_image(name)) as image:
        remove_folder(image.layers[0].parents[2])
        with pytest.raises(ImageUnavailable, match="was deleted from the node's cache while rollouts used it"):
            image.check()
    with await cache.get(parse_image(name)) as image:
        image.check_files()


async def test_a_pinned_image_is_not_pruned_and_a_killed_holder_lets_go(registry: Pusher, open_folder: Path) -> None:
    registry.image("cache/prune", "v1")
    folder, name = open_folder / "cache", f"docker://{registry.host}/cache/prune:v1"
    cache = ImageCache(folder)
    with _process(folder, name) as process:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        await cache.room.prune(time.time() + 9)
        assert len(cache.entries()) == 1
        assert await cache.room.prune(time.time() - 1000.0) == 0
        process.send_signal(signal.SIGKILL)
    assert await cache.room.prune(time.time() + 9) > 0
    assert cache.entries() == []


async def test_no_other_user_of_the_node_reaches_an_image(registry: Pusher, open_folder: Path) -> None:
    """Files of an image may be writable for all. Folders that were open are closed too."""
    registry.image(
        "closed", "v1", [gz(tar(("app", {"type": tarfile.DIRTYPE, "mode": 0o777}), ("app/run.sh", b"1", 0o777)))]
    )
    image, folder = f"docker://{registry.host}/closed:v1", open_folder / "image-cache"
    with await ImageCache(folder).get(parse_image(image)) as held:
        script = place(held, "app/run.sh")
        assert stat.S_IMODE(script.stat().st_mode) == 0o777
        for opened in (folder, folder / "layers"):
            opened.chmod(0o755)
        assert _others_can(script)
        ImageCache(folder)
        assert not _others_can(script)
        assert sandbox_account().can_reach(held.layers[0])


def _others_can(path: Path) -> bool:
    """Whether a user can reach a file who is neither this process's nor that of the sandboxes."""
    if os.geteuid() == 0:
        return subprocess.run(["/bin/cat", path], user=1, group=1, extra_groups=[], capture_output=True).returncode == 0
    return all(above.stat().st_mode & 0o011 for above in path.parents)

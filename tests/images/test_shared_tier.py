"""The shared tier: one pull for many nodes, damaged files, and nodes that die in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from rollyard.images import flat_image, shared_lease, shared_tier
from rollyard.images.base import FillRoom, ImageConfig
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.images.shared_tier import SharedTier
from rollyard.images.unpack import BrokenLayer, unpack_flat
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import place
from tests.support.image_registry import BASE, Front, Pusher, gz, hard_link, symlink, tar

_STAGE = """
import asyncio, sys
from pathlib import Path
from rollyard.images.settings import CacheSettings
from rollyard.images.cache import ImageCache
from rollyard.kinds.values.image_reference import parse_image
asyncio.run(ImageCache(Path(sys.argv[1]), CacheSettings(shared_folder=sys.argv[3])).prefetch(parse_image(sys.argv[2])))
"""


def _nodes(folder: Path, count: int) -> list[ImageCache]:
    """Caches of nodes that share a tier."""
    settings = CacheSettings(shared_folder=str(folder / "tier"))
    return [ImageCache(folder / f"node{number}", settings) for number in range(count)]


def _tree(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            None if path.is_symlink() else path.stat().st_mode,
            path.lstat().st_mtime,
        )
        for path in root.rglob("*")
    }


async def test_eight_nodes_pull_an_image_once(registry: Pusher, front: Front, open_folder: Path) -> None:
    layer = tar(
        ("d", None), ("d/long" + "n" * 150, b"1"), ("d/run", {"mode": 0o755}), ("d/link", symlink("run")),
        ("d/hard", hard_link("d/run")), ("big", os.urandom(9 << 20)),
    )  # fmt: skip
    manifest = registry.manifest_of("tier/one", [BASE, gz(layer)], {"Env": ["A=b"], "WorkingDir": "/d"})
    registry.manifest("tier/one", "v1", manifest)
    nodes = _nodes(open_folder, 8)
    images = await asyncio.gather(*(node.get(parse_image(f"docker://{front.host}/tier/one:v1")) for node in nodes))
    assert front.count("manifests/v1") == 1
    assert all(front.count(layer["digest"]) == 1 for layer in manifest["layers"])
    again = {path for path, times in front.requests.items() if times > 1}
    config = f"/v2/tier/one/blobs/{manifest['config']['digest']}"
    assert again <= {config}, "only the node that looks the tag up and the one that pulls may read the same"
    trees = [_tree(image.layers[0]) for image in images]
    assert len(trees[0]) == 10
    assert all(tree == trees[0] for tree in trees)
    assert {image.config.workdir for image in images} == {"/d"}
    assert {os.stat(place(image, "d/hard")).st_nlink for image in images} == {2}
    (packed,) = (open_folder / "tier/images").iterdir()
    listed = subprocess.run(["tar", "--zstd", "-tf", packed], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 10


@pytest.mark.parametrize(
    "damage", ["cut", "flip", "empty", "forged index", "forged list", "forged frame", "fifo", "folder"]
)
async def test_a_damaged_file_is_made_again(
    registry: Pusher, front: Front, open_folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "LAG_SECONDS", 0.1)
    registry.image("tier/damaged", "v1", [BASE, gz(tar(("big", os.urandom(5 << 20))))])
    name, (first, second) = f"docker://{front.host}/tier/damaged:v1", _nodes(open_folder, 2)
    await first.prefetch(parse_image(name))
    (packed,) = (open_folder / "tier/images").iterdir()
    whole = packed.read_bytes()
    middle = len(whole) // 2
    packed.unlink()
    if damage == "fifo":
        os.mkfifo(packed)
    elif damage == "folder":
        (packed / "folder").mkdir(parents=True)
    else:
        packed.write_bytes(
            {
                "cut": whole[:middle],
                "flip": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "empty": b"",
                "forged index": _forged(index=b"[" * 100_000),
                "forged list": _forged(listed=b"[" * 100_000),
                "forged frame": _forged(frame=b"no zstd"),
            }[damage]
        )
    with await second.get(parse_image(name)) as image:
        assert place(image, "big").stat().st_size == 5 << 20
    assert packed.stat().st_size == len(whole)
    assert front.count("blobs") == 6


@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_a_file_whose_end_a_shared_folder_shows_late_is_not_pulled_again(
    registry: Pusher, front: Front, open_folder: Path, share: float
) -> None:
    registry.image("tier/late", "v1", [BASE, gz(tar(("big", os.urandom(1 << 20))))])
    name, (first, second) = f"docker://{front.host}/tier/late:v1", _nodes(open_folder, 2)
    await first.prefetch(parse_image(name))
    (packed,) = (open_folder / "tier/images").iterdir()
    whole, pulled = packed.read_bytes(), front.count("blobs")
    packed.write_bytes(whole[: int(share * len(whole))])
    fetching = asyncio.create_task(second.prefetch(parse_image(name)))
    await asyncio.wait({fetching}, timeout=0.5)
    packed.write_bytes(whole)
    await asyncio.wait_for(fetching, 60)
    assert front.count("blobs") == pulled


def _forged(index: bytes = b"", listed: bytes = b"[[], [], [], []]", frame: bytes = b"") -> bytes:
    """A file whose digests are right, and whose content is not."""
    data = frame or zstandard.ZstdCompressor().compress(listed)
    about = flat_image.Frame(len(data), len(listed), hashlib.sha256(data).hexdigest())
    end = index or json.dumps({"config": ImageConfig().to_json(), "frames": [], "listed": about}).encode()
    mark = struct.pack("<I32s8s", len(end), hashlib.sha256(end).digest(), b"RLYDFLT1")
    return flat_image.skippable(data) + flat_image.skippable(end + mark)


async def test_a_dead_puller_is_taken_over(
    registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lease, "LEASE_SECONDS", 0.3)
    digest = registry.image("tier/dead", "v1")
    (node,) = _nodes(open_folder, 1)
    (open_folder / "tier/images").mkdir(parents=True)
    stem = open_folder / "tier/images" / digest.replace(":", "-")
    stem.with_suffix(".tar.lease").write_text("a dead node")
    (open_folder / "tier/images" / f".{stem.name}.tar.zst.0123").write_text("incomplete")
    with await node.get(parse_image(f"docker://{registry.host}/tier/dead@{digest}")) as image:
        assert place(image, "etc/name").exists()
    assert [path.name for path in (open_folder / "tier/images").iterdir()] == [f"{stem.name}.tar.zst"]


async def test_a_file_that_prune_deletes_just_before_it_is_unpacked_counts_as_missing(open_folder: Path) -> None:
    with open(open_folder / "lock", "w") as lock:
        room = FillRoom(1 << 20, lock.fileno())
        with pytest.raises(BrokenLayer, match="it was deleted meanwhile"):
            await unpack_flat("docker://r.example/a:v1", open_folder / "gone.tar.zst", open_folder / "root", room)


async def test_a_node_agent_killed_while_it_unpacks_the_shared_file(registry: Pusher, open_folder: Path) -> None:
    """Its processes end with it, and another node agent of the node begins again."""
    registry.image("tier/killed", "v1", [BASE, gz(tar(*((f"f{number}", os.urandom(999)) for number in range(5000))))])
    name = f"docker://{registry.host}/tier/killed:v1"
    first, second = _nodes(open_folder, 2)
    await first.prefetch(parse_image(name))
    process = subprocess.Popen([sys.executable, "-c", _STAGE, open_folder / "node1", name, open_folder / "tier"])
    try:
        while not list((open_folder / "node1/filling").glob("*/root/f*")):
            assert process.poll() is None
            await asyncio.sleep(0.001)
    finally:
        process.kill()
        process.wait()
    with await first.get(parse_image(name)) as whole, await second.get(parse_image(name)) as image:
        assert _tree(image.layers[0]) == _tree(whole.layers[0])
    assert os.listdir(open_folder / "node1/filling") == []


async def test_a_lease_that_is_still_empty_has_a_holder(open_folder: Path) -> None:
    lease, asked = open_folder / "lease", 0
    lease.touch()

    def done() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    async with shared_lease.shared_lease(lease, done) as held:
        assert not held
    assert lease.exists()


async def test_two_pullers_at_worst_work_twice(
    registry: Pusher, front: Front, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A puller that is only slow is taken over, and both end well."""
    monkeypatch.setattr(shared_lease, "LEASE_SECONDS", 0.0)
    monkeypatch.setattr(shared_lease, "RENEW_SECONDS", 1000.0)
    registry.image("tier/slow", "v1", [BASE, gz(tar(("big", os.urandom(2 << 20))))])
    images = await asyncio.gather(
        *(node.get(parse_image(f"docker://{front.host}/tier/slow:v1")) for node in _nodes(open_folder, 3))
    )
    assert {place(image, "big").stat().st_size for image in images} == {2 << 20}
    (packed,) = (open_folder / "tier/images").iterdir()
    subprocess.run(["zstd", "-qt", packed], check=True)


@pytest.mark.parametrize("fault", ["no folder", "a file nobody can read"])
async def test_a_shared_folder_that_cannot_be_used_costs_a_pull_only(
    registry: Pusher, open_folder: Path, fault: str
) -> None:
    digest, tier = registry.image("tier/none", "v1"), open_folder / "tier"
    if fault == "no folder":
        tier.write_text(fault)
    else:
        (tier / "images").mkdir(parents=True)
        packed = tier / "images" / f"{digest.replace(':', '-')}.tar.zst"
        packed.symlink_to(packed)  # also root cannot read it
    (node,) = _nodes(open_folder, 1)
    with await node.get(parse_image(f"docker://{registry.host}/tier/none:v1")) as image:
        assert place(image, "etc/name").exists()


async def test_an_image_whose_digest_is_known_needs_no_look_at_the_shared_folder(
    registry: Pusher, open_folder: Path
) -> None:
    """Its file system may hang, and sandboxes are claimed in milliseconds."""
    registry.image("tier/known", "v1")
    (node,) = _nodes(open_folder, 1)
    name = f"docker://{registry.host}/tier/known:v1"
    with await node.get(parse_image(name)) as held:
        shutil.rmtree(open_folder / "tier")
        with await node.get(parse_image(name)):
            assert node.known(parse_image(name)) == held.digest
    assert not (open_folder / "tier").exists()


async def test_a_lease_in_a_full_folder_leaves_no_file_that_looks_like_a_holder(open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "small", open_folder], check=True)
    try:
        (open_folder / "of somebody else").write_bytes(bytes(4096))
        with pytest.raises(OSError, match="No space"):
            async with shared_lease.shared_lease(open_folder / "lease", lambda: False):
                pass
        assert [path.name for path in open_folder.iterdir()] == ["of somebody else"]
    finally:
        subprocess.run(["umount", "-l", open_folder], check=True)


def test_prune_deletes_what_dead_nodes_left(open_folder: Path) -> None:
    tier, names = SharedTier(open_folder), ["sha256-1.tar.lease", ".sha256-1.tar.zst.01", "sha256-2.tar.lease.01"]
    left = [open_folder / "images" / name for name in names] + [open_folder / "names" / ".1.json.01"]
    for path in left:
        path.write_bytes(b"1234")
    assert tier.prune(0.0) == 0  # live nodes may be writing them
    for path in left[:1] + left[2:]:
        os.utime(path, (1000, 1000))
    assert tier.prune(1e9) == 12
    os.utime(left[1], (1000, 1000))
    assert tier.shrink(1 << 30) == 4
    assert not any(path.exists() for path in left)

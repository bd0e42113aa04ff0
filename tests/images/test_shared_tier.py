"""The shared tier: one pull for many nodes, damaged files, and nodes that die in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard

from rollyard.images import flat_layer, shared_layers, shared_lease, shared_tier, unpacked_layers
from rollyard.images.base import FillRoom, ImageConfig
from rollyard.images.cache import ImageCache
from rollyard.images.layer_stack import LayerStack
from rollyard.images.settings import CacheSettings
from rollyard.images.shared_tier import SharedTier
from rollyard.images.unpack import BrokenLayer, LayerJob, unpack_differences
from rollyard.images.unpacked_layers import layer_names
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import place
from tests.support.image_registry import BASE, Front, Pusher, digest, gz, hard_link, symlink, tar

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


def _tree(files: LayerStack) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, real in files.walk():
        info, content = os.lstat(real), b""
        if stat.S_ISLNK(info.st_mode):
            content = os.readlink(real)
        elif stat.S_ISREG(info.st_mode):
            content = Path(os.fsdecode(real)).read_bytes()
        found[os.fsdecode(path)] = content, stat.filemode(info.st_mode), info.st_mtime
    return found


def _packed(folder: Path) -> list[Path]:
    """Files of the layers in the shared folder, the largest first."""
    return sorted((folder / "tier/layers").iterdir(), key=lambda path: -path.stat().st_size)


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
    trees = [_tree(image.files) for image in images]
    assert len(trees[0]) == 10
    assert all(tree == trees[0] for tree in trees)
    assert {image.config.workdir for image in images} == {"/d"}
    assert {os.stat(place(image, "d/hard")).st_nlink for image in images} == {2}
    assert [path.suffix for path in (open_folder / "tier/images").iterdir()] == [".json"]
    listed = [
        subprocess.run(["tar", "--zstd", "-tf", path], capture_output=True, text=True, check=True).stdout.splitlines()
        for path in _packed(open_folder)
    ]
    assert [len(names) for names in listed] == [6, 4]


@pytest.mark.parametrize(
    "damage", ["cut", "flip", "empty", "forged index", "forged list", "forged frame", "fifo", "folder"]
)
async def test_a_damaged_file_is_made_again(
    registry: Pusher, front: Front, open_folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_layers, "LAG_SECONDS", 0.1)
    registry.image("tier/damaged", "v1", [BASE, gz(tar(("big", os.urandom(5 << 20))))])
    name, (first, second) = f"docker://{front.host}/tier/damaged:v1", _nodes(open_folder, 2)
    await first.prefetch(parse_image(name))
    packed = _packed(open_folder)[0]
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
    assert (
        front.count("blobs") == 5
    )  # the configuration, the two layers, and the configuration and the damaged layer once more


@pytest.mark.parametrize("damage", ["cut", "flip", "another folder"])
async def test_a_damaged_list_of_layers_is_made_again_without_a_download_of_layers(
    registry: Pusher, front: Front, open_folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "LAG_SECONDS", 0.1)
    registry.image("tier/list", "v1", [BASE])
    name, (first, second) = parse_image(f"docker://{front.host}/tier/list:v1"), _nodes(open_folder, 2)
    await first.prefetch(name)
    (path,) = (open_folder / "tier/images").iterdir()
    whole = path.read_bytes()
    forged = json.dumps({"config": ImageConfig().to_json(), "layers": ["../../outside"]})
    path.write_bytes(
        {
            "cut": whole[:50],
            "flip": whole.replace(b"sha256-", b"sha256_"),
            "another folder": json.dumps(
                {"image": forged, "sha256": hashlib.sha256(forged.encode()).hexdigest()}
            ).encode(),
        }[damage]
    )
    with await second.get(name) as image:
        assert place(image, "etc/name").exists()
    assert path.read_bytes() == whole
    assert front.count(digest(BASE)) == 1


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


def _forged(index: bytes = b"", listed: bytes = b"[[], [], [], [], []]", frame: bytes = b"") -> bytes:
    """A file whose digests are right, and whose content is not."""
    data = frame or zstandard.ZstdCompressor().compress(listed)
    about = flat_layer.Frame(len(data), len(listed), hashlib.sha256(data).hexdigest())
    end = index or json.dumps({"format": 2, "frames": [], "listed": about}).encode()
    mark = struct.pack("<I32s8s", len(end), hashlib.sha256(end).digest(), b"RLYDFLT1")
    return flat_layer.skippable(data) + flat_layer.skippable(end + mark)


async def test_a_dead_puller_is_taken_over(
    registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lease, "LEASE_SECONDS", 0.3)
    manifest = registry.manifest_of("tier/dead", [BASE])
    digest = registry.manifest("tier/dead", "v1", manifest)
    (node,) = _nodes(open_folder, 1)
    images, layers = open_folder / "tier/images", open_folder / "tier/layers"
    images.mkdir(parents=True)
    layers.mkdir()
    (name,) = layer_names([manifest["layers"][0]["digest"]])
    for lease in (images / f"{digest.replace(':', '-')}.lease", layers / f"{name}.tar.lease"):
        lease.write_text("a dead node")
    (layers / f".{name}.tar.zst.0123").write_text("incomplete")
    with await node.get(parse_image(f"docker://{registry.host}/tier/dead@{digest}")) as image:
        assert place(image, "etc/name").exists()
    assert [path.name for path in (*images.iterdir(), *layers.iterdir())] == [
        f"{digest.replace(':', '-')}.json", f"{name}.tar.zst"
    ]  # fmt: skip


async def test_a_file_that_prune_deletes_just_before_it_is_unpacked_counts_as_missing(open_folder: Path) -> None:
    with open(open_folder / "lock", "w") as lock:
        room = FillRoom(1 << 20, lock.fileno())
        job = LayerJob(open_folder / "root", whole=False, file=open_folder / "gone.tar.zst", packed=True)
        with pytest.raises(BrokenLayer, match="it was deleted meanwhile"):
            await unpack_differences("docker://r.example/a:v1", [job], room)


async def test_a_node_agent_killed_while_it_unpacks_the_shared_file(registry: Pusher, open_folder: Path) -> None:
    """Its processes end with it, and another node agent of the node begins again."""
    registry.image("tier/killed", "v1", [BASE, gz(tar(*((f"f{number}", os.urandom(999)) for number in range(5000))))])
    name = f"docker://{registry.host}/tier/killed:v1"
    first, second = _nodes(open_folder, 2)
    await first.prefetch(parse_image(name))
    process = subprocess.Popen([sys.executable, "-c", _STAGE, open_folder / "node1", name, open_folder / "tier"])
    try:
        while not list((open_folder / "node1/filling").glob("layer-*/root/f*")):
            assert process.poll() is None
            await asyncio.sleep(0.001)
    finally:
        process.kill()
        process.wait()
    with await first.get(parse_image(name)) as whole, await second.get(parse_image(name)) as image:
        assert _tree(image.files) == _tree(whole.files)
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
    subprocess.run(["zstd", "-qt", *_packed(open_folder)], check=True)
    assert len(_packed(open_folder)) == 2


@pytest.mark.parametrize("fault", ["no folder", "a file nobody can read"])
async def test_a_shared_folder_that_cannot_be_used_costs_a_pull_only(
    registry: Pusher, open_folder: Path, fault: str
) -> None:
    digest, tier = registry.image("tier/none", "v1"), open_folder / "tier"
    if fault == "no folder":
        tier.write_text(fault)
    else:
        (tier / "images").mkdir(parents=True)
        packed = tier / "images" / f"{digest.replace(':', '-')}.json"
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


def test_prune_deletes_what_dead_nodes_and_older_versions_left(open_folder: Path) -> None:
    tier = SharedTier(open_folder)
    left = [
        open_folder / name
        for name in (
            "images/sha256-1.lease", "images/.sha256-1.json.01", "images/sha256-2.lease.01", "images/sha256-3.tar.zst",
            "layers/sha256-1.tar.lease", "layers/.sha256-1.tar.zst.01", "layers/sha256-1.tar.zst", "names/.1.json.01",
        )
    ]  # fmt: skip
    for path in left:
        path.write_bytes(b"1234")
    assert tier.prune(0.0) == 0  # live nodes may be writing them
    for path in left[1:]:
        os.utime(path, (1000, 1000))
    assert tier.prune(1e9) == 28
    os.utime(left[0], (1000, 1000))
    assert tier.shrink(1 << 30) == 4
    assert not any(path.exists() for path in left)


def _big(size: int = 1 << 20) -> bytes:
    return gz(tar(("big", os.urandom(size))))


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


async def test_a_further_image_on_a_base_costs_only_its_difference(
    registry: Pusher, front: Front, open_folder: Path
) -> None:
    """At the registry and in the shared folder, also if the node that pulls it has nothing."""
    base = gz(tar(("base", None), ("base/big", os.urandom(4 << 20)), ("base/gone", b"1")))
    own = gz(tar(("own", os.urandom(1 << 20)), ("base/.wh.gone", b""), ("base/link", symlink("big"))))
    for tag, layers in (("v1", [base]), ("v2", [base, own])):
        registry.image("tier/on", tag, layers)
    names = [f"docker://{front.host}/tier/on:v{number}" for number in (1, 2)]
    first, second, third = _nodes(open_folder, 3)
    await first.prefetch(parse_image(names[0]))
    stored, sent = _packed(open_folder), front.bytes
    await second.prefetch(parse_image(names[1]))
    assert len(own) < front.bytes - sent < len(own) + (1 << 16)
    assert _bytes(_packed(open_folder)) - _bytes(stored) < len(own) + (1 << 16)
    sent = front.bytes
    stored[0].write_bytes(b"nobody reads it who has the base")
    with (
        await first.get(parse_image(names[1])) as here,
        await ImageCache(open_folder / "plain").get(parse_image(f"docker://{registry.host}/tier/on:v2")) as plain,
    ):
        assert _tree(here.files) == _tree(plain.files)
    assert (front.bytes, stored[0].stat().st_size) == (sent, 32)
    with await third.get(parse_image(names[1])) as healed:
        assert place(healed, "base/big").stat().st_size == 4 << 20
    assert stored[0].stat().st_size > 4 << 20
    images = SharedTier(open_folder / "tier").images()
    assert sorted((one.own_bytes >> 20, one.shared_bytes >> 20) for one in images) == [(0, 4), (1, 4)]


async def test_images_on_one_base_that_nodes_pull_at_once_download_it_once(
    registry: Pusher, front: Front, open_folder: Path
) -> None:
    base = _big()
    names = [f"docker://{front.host}/tier/storm:v{number}" for number in range(3)]
    for number, name in enumerate(names):
        registry.image("tier/storm", name[-2:], [BASE, base, gz(tar((f"own{number}", b"1")))])
    nodes = _nodes(open_folder, 3)
    await asyncio.gather(*(node.prefetch(parse_image(name)) for node, name in zip(nodes, names, strict=True)))
    assert front.count(digest(base)) == 1


@pytest.mark.parametrize(("writer", "reader"), [(2, 64), (64, 2), (2, 2)])
async def test_layers_with_links_to_all_below_are_shared_as_differences(
    registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch, writer: int, reader: int
) -> None:
    """`writer` and `reader`: each layer whose number is a multiple is whole there."""
    base = gz(
        tar(("d", None), ("d/big", os.urandom(2 << 20)), ("d/run", b"1"), ("d/gone", b"1"), ("d/to", symlink("run")))
    )
    own = gz(
        tar(("d/.wh.gone", b""), ("d/run", b"2"), ("d/other", hard_link("d/run")), ("d/to", None), ("d/to/f", b"3"))
    )
    registry.image("tier/whole", f"v{writer}-{reader}", [base, own])
    name = parse_image(f"docker://{registry.host}/tier/whole:v{writer}-{reader}")
    first, second = _nodes(open_folder, 2)
    monkeypatch.setattr(unpacked_layers, "MOST_SEEN", writer)
    with await first.get(name) as written:
        monkeypatch.setattr(unpacked_layers, "MOST_SEEN", reader)
        with await second.get(name) as read:
            assert _tree(read.files) == _tree(written.files)
            assert [len(written.layers), len(read.layers)] == [1 if most == 2 else 2 for most in (writer, reader)]
            assert os.stat(place(read, "d/run")).st_ino == os.stat(place(read, "d/other")).st_ino
    assert _packed(open_folder)[1].stat().st_size < 1 << 16


async def test_a_node_killed_while_it_writes_a_layer_is_taken_over(
    registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_lease, "LEASE_SECONDS", 0.3)
    registry.image("tier/writes", "v1", [BASE, _big(32 << 20)])
    name, (_, second) = f"docker://{registry.host}/tier/writes:v1", _nodes(open_folder, 2)
    layers = open_folder / "tier/layers"
    process = subprocess.Popen([sys.executable, "-c", _STAGE, open_folder / "node0", name, open_folder / "tier"])
    try:
        while not any(path.stat().st_size for path in layers.glob(".*.tar.zst.*")):
            assert process.poll() is None
            await asyncio.sleep(0.001)
    finally:
        process.kill()
        process.wait()
    assert list((open_folder / "tier/images").glob("*.json")) == []
    with await second.get(parse_image(name)) as image:
        assert place(image, "big").stat().st_size == 32 << 20
    assert [path.suffix for path in layers.iterdir()] == [".zst"] * 2


async def test_a_layer_that_another_image_has_stays_when_an_image_is_deleted(
    registry: Pusher, open_folder: Path
) -> None:
    base = _big()
    for number in (1, 2):
        registry.image("tier/delete", f"v{number}", [base, _big(1 << 20 if number == 1 else 9)])
    (node,), tier = _nodes(open_folder, 1), SharedTier(open_folder / "tier")
    names = [f"docker://{registry.host}/tier/delete:v{number}" for number in (1, 2)]
    for name in names:
        await node.prefetch(parse_image(name))
    one, other = sorted(tier.images(), key=lambda image: image.name or "")
    assert tier.delete([one]) == one.own_bytes > 1 << 20
    assert tier.has(other.digest)
    (left,) = tier.images()
    assert (left.digest, left.shared_bytes) == (other.digest, 0)
    assert tier.delete([left]) == left.own_bytes > 1 << 20
    assert _packed(open_folder) == []

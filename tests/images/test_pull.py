"""Images pulled from a real registry: names, platforms, media types, layers, and a registry that fails."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
import zstandard

from rollyard.core.errors import ImageNotFound, ImageUnavailable
from rollyard.images import registry_client, resolved_tags
from rollyard.images.cache import ImageCache
from rollyard.images.named_image import named_image
from rollyard.images.oci_manifest import machine
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import names, paths, place
from tests.support.image_registry import BASE, Front, Pusher, digest, gz, hard_link, symlink, tar

FOREIGN = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"


async def test_an_image_by_tag_and_by_digest_has_its_files_and_its_configuration(
    registry: Pusher, cache: ImageCache
) -> None:
    config = {"Env": ["A=b=c", "PATH=/x"], "WorkingDir": "/app", "User": "1001", "Entrypoint": ["e"], "Cmd": ["c"]}
    pushed = registry.image("names/one", "v1", config=config)
    with await cache.get(parse_image(f"docker://{registry.host}/names/one:v1")) as image:
        assert image.digest == pushed
        assert place(image, "etc/name").read_text() == "base\n"
        assert os.stat(place(image, "bin/tool")).st_mtime == 1_600_000_000
        assert image.config.env == {"A": "b=c", "PATH": "/x"}
        assert (image.config.workdir, image.config.user, image.config.cmd) == ("/app", "1001", ("c",))
    with await cache.get(parse_image(f"docker://{registry.host}/names/one@{pushed}")) as same:
        assert same.layers == image.layers
    assert cache.ready() == {
        f"docker://{registry.host}/names/one:v1",
        f"docker://{registry.host}/names/one@{pushed}",
    }


@pytest.mark.parametrize("media", [0, 1])
async def test_an_index_gives_the_image_of_this_machine(registry: Pusher, cache: ImageCache, media: int) -> None:
    name = f"names/many{media}"
    ours = registry.image(name, "ours", [BASE, gz(tar(("etc/mine", b"1")))], media=media)
    other = registry.image(name, "other", [gz(tar(("etc/other", b"1")))], media=media)
    index = registry.index(name, "v1", {"mips": other, machine(): ours}, media=media)
    for reference in (f"{name}:v1", f"{name}@{index}"):
        with await cache.get(parse_image(f"docker://{registry.host}/{reference}")) as image:
            assert image.digest == ours
            assert names(image, "etc") == ["mine", "name"]
    registry.index(name, "foreign", {"mips": other})
    with pytest.raises(ImageUnavailable, match=f"built for linux/mips, not for linux/{machine()}"):
        await cache.get(parse_image(f"docker://{registry.host}/{name}:foreign"))


async def test_layers_in_zstd_and_plain_tar(registry: Pusher, cache: ImageCache) -> None:
    """The media types say gzip. A zstd file may have frames without content at its start and between others."""
    packed, more = (zstandard.compress(tar((f"etc/{name}", b"1"))) for name in ("packed", "more"))
    empty = b"\x5f\x2a\x4d\x18\x03\0\0\0abc"
    layers = [BASE, packed, tar(("etc/plain", b"1")), empty + empty + more + empty, b"", gz(b""), packed]
    registry.image("names/zstd", "v1", layers)
    with await cache.get(parse_image(f"docker://{registry.host}/names/zstd:v1")) as image:
        assert names(image, "etc") == ["more", "name", "packed", "plain"]


async def test_a_layer_that_the_disk_has_damaged_is_downloaded_again(
    cache: ImageCache, registry: Pusher, front: Front, open_folder: Path
) -> None:
    layer = tar(("f", bytes(9000)))  # plain: nothing but the digest shows the damage
    registry.image("pull/disk", "v1", [BASE, layer])
    name = parse_image(f"docker://{front.host}/pull/disk:v1")
    await cache.prefetch(name)
    await cache.room.delete(cache.entries())
    blob = open_folder / "cache/blobs" / digest(layer).replace(":", "-")
    blob.write_bytes(layer[:1000] + b"!" + layer[1001:])
    with await cache.get(name) as image:
        assert place(image, "f").read_bytes() == bytes(9000)
    assert [front.count(digest(one)) for one in (BASE, layer)] == [1, 2]


async def test_a_layer_that_two_images_share_is_downloaded_once(
    registry: Pusher, front: Front, cache: ImageCache
) -> None:
    shared = gz(tar(("big", os.urandom(1000))))
    registry.image("shared/a", "v1", [shared, gz(tar(("a", b"1")))])
    registry.image("shared/b", "v1", [shared, gz(tar(("b", b"1")))])
    names = [f"docker://{front.host}/shared/{name}:v1" for name in "ab"]
    await asyncio.gather(*(cache.prefetch(parse_image(name)) for name in names))
    assert front.count(digest(shared)) == 1


async def test_a_tag_is_asked_for_again_after_a_while_and_a_digest_never(
    registry: Pusher, front: Front, cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registry.image("moved/it", "v1")
    tag, pinned = f"docker://{front.host}/moved/it:v1", f"docker://{front.host}/moved/it@{first}"
    await cache.prefetch(parse_image(tag))
    await cache.prefetch(parse_image(pinned))
    asked = front.count("manifests")
    second = registry.image("moved/it", "v1", [gz(tar(("bin/x", b"2")))])
    with await cache.get(parse_image(tag)) as image:
        assert image.digest == first
    monkeypatch.setattr(resolved_tags, "TAG_SECONDS", 0.0)
    with await cache.get(parse_image(pinned)) as image:
        assert image.digest == first
    assert front.count("manifests") == asked
    with await cache.get(parse_image(tag)) as image:
        assert image.digest == second
    front.faults.append(("manifests", "503", 1000))
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)
    with await cache.get(parse_image(tag)) as image:  # the last known digest
        assert image.digest == second


async def test_whiteouts_links_and_replaced_files(registry: Pusher, cache: ImageCache) -> None:
    below = tar(
        ("a", None), ("a/gone", b"1"), ("a/kept", b"1"), ("dir", None), ("dir/sub", None), ("dir/sub/f", b"1"),
        ("opaque", None), ("opaque/old", b"1"), ("opaque/deep", None), ("opaque/deep/old", b"1"), ("file", b"1"),
        ("lib", symlink("usr/lib")), ("usr", None), ("usr/lib", None), ("two", b"22"), ("one", hard_link("two")),
    )  # fmt: skip
    above = tar(
        ("a/.wh.gone", b""), (".wh.dir", b""), ("opaque/new", b"2"), ("opaque/.wh..wh..opq", b""),
        ("opaque/last", b"2"), ("file", None), ("file/inside", b"2"), ("lib/x", b"2"), ("a/.wh.new", b""),
        ("a/new", b"2"), (".wh.missing", b""), (".wh..wh.aufs", b""),
    )  # fmt: skip
    registry.image("layers/white", "v1", [gz(below), gz(above)])
    with await cache.get(parse_image(f"docker://{registry.host}/layers/white:v1")) as image:
        found = paths(image)
        assert found == [
            "a", "a/kept", "a/new", "file", "file/inside", "lib", "one", "opaque", "opaque/last", "opaque/new", "two",
            "usr", "usr/lib", "usr/lib/x",
        ]  # fmt: skip
        assert os.stat(place(image, "one")).st_ino == os.stat(place(image, "two")).st_ino


@pytest.mark.parametrize(
    ("fault", "times"), [("503", 2), ("cut", 3), ("stall", 1), ("hang", 1), ("wrong", 1), ("429", 1)]
)
async def test_a_registry_that_fails_for_a_while(
    registry: Pusher, front: Front, cache: ImageCache, monkeypatch: pytest.MonkeyPatch, fault: str, times: int
) -> None:
    if fault in ("stall", "hang"):  # a busy machine may be slow itself
        monkeypatch.setattr(registry_client, "STALL_SECONDS", 2.0)
    layer = gz(tar(("big", os.urandom(3_000_000))))
    registry.image("broken/while", fault, [layer])
    front.faults.append((f"blobs/{digest(layer)}", fault, times))
    with await cache.get(parse_image(f"docker://{front.host}/broken/while:{fault}")) as image:
        assert place(image, "big").stat().st_size == 3_000_000
    assert front.count(digest(layer)) == times + 1


async def test_a_blob_is_continued_where_it_was_cut_even_by_another_process(
    registry: Pusher, front: Front, cache: ImageCache, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)
    layer = gz(tar(("big", os.urandom(3_000_000))))
    registry.image("broken/part", "v1", [layer])
    monkeypatch.setattr(registry_client, "STALL_SECONDS", 2.0)
    front.faults += [(digest(layer), "stall", 1), (digest(layer), "503", 1), (digest(layer), "no ranges", 1)]
    with pytest.raises(ImageUnavailable, match="answers 503"):
        await cache.get(parse_image(f"docker://{front.host}/broken/part:v1"))
    (part,) = (open_folder / "cache/blobs").glob("*.part")
    assert 1 << 16 <= part.stat().st_size < len(layer)
    other = ImageCache(open_folder / "cache", CacheSettings())
    with await other.get(parse_image(f"docker://{front.host}/broken/part:v1")) as image:
        assert place(image, "big").stat().st_size == 3_000_000
    await other.close()


async def test_each_failure_is_a_sentence_with_the_image_and_what_to_do(
    registry: Pusher, front: Front, cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 2)
    registry.image("broken/all", "v1")

    async def failure(name: str) -> str:
        with pytest.raises(ImageUnavailable) as caught:
            await cache.get(parse_image(name))
        assert caught.value.image == name
        return str(caught.value)

    host = front.host
    missing = await failure(f"docker://{host}/broken/all:v2")
    assert f"the image docker://{host}/broken/all:v2 cannot be used now" in missing
    assert f"the registry {host} has no broken/all:v2: check the name, or push the image" in missing
    front.faults.append(("broken/all/manifests", "503", 2))
    assert "answers 503" in await failure(f"docker://{host}/broken/all:v1")
    front.faults.append(("broken/all/blobs", "to [::1", 3))
    assert "names an address that is not valid" in await failure(f"docker://{host}/broken/all:v1")
    front.faults.clear()
    registry.image("broken/all", "gzip", [BASE[: len(BASE) // 2]])
    assert "its gzip data ends too early: build and push" in await failure(f"docker://{host}/broken/all:gzip")
    registry.image("broken/all", "junk", [gz(b"no archive" * 200)])
    assert "it is not a tar archive" in await failure(f"docker://{host}/broken/all:junk")
    front.faults.append(("broken/all/blobs", "wrong", 9))
    assert "sent wrong bytes for layer" in await failure(f"docker://{host}/broken/all:v1")
    assert "does not answer properly: ClientConnectorError: Connect" in await failure("docker://localhost:1/a:v1")
    with pytest.raises(ImageNotFound, match="no valid repository"):
        named_image("docker://localhost:1/UPPER")


async def test_a_registry_that_asks_to_wait_is_asked_again_only_then(
    registry: Pusher, front: Front, cache: ImageCache
) -> None:
    registry.image("broken/busy", "v1")
    front.faults.append(("manifests", "429", 1))
    began = time.monotonic()
    await cache.prefetch(parse_image(f"docker://{front.host}/broken/busy:v1"))
    assert time.monotonic() - began >= 1.0


async def test_a_layer_that_the_registry_lacks_is_named(registry: Pusher, front: Front, cache: ImageCache) -> None:
    """Many registries do not keep foreign layers, which have addresses of their own."""
    layer = gz(tar(("foreign", b"1")))
    manifest = registry.manifest_of("broken/foreign", [BASE, layer])
    manifest["layers"][1]["mediaType"] = FOREIGN
    registry.manifest("broken/foreign", "v1", manifest)
    front.faults.append((digest(layer), "404", 1))
    name = f"docker://{front.host}/broken/foreign:v1"
    with pytest.raises(
        ImageUnavailable, match=f"lacks layer {digest(layer)} of it: push the image again, also its foreign"
    ):
        await cache.get(parse_image(name))
    with await cache.get(parse_image(name)) as image:
        assert place(image, "foreign").exists(), "a registry that keeps the layer is asked for it"


async def test_a_tag_that_moves_while_its_image_is_pulled_gives_the_first_image_whole(
    registry: Pusher, front: Front, cache: ImageCache
) -> None:
    first = registry.image("moving/it", "v1", [BASE, gz(tar(("number", b"1")))])
    front.faults.append(("blobs", "slow 0.5", 9))
    pull = asyncio.create_task(cache.get(parse_image(f"docker://{front.host}/moving/it:v1")))
    while not front.count("blobs"):
        await asyncio.sleep(0.01)
    registry.image("moving/it", "v1", [BASE, gz(tar(("number", b"2")))])
    with await pull as image:
        assert (image.digest, place(image, "number").read_text()) == (first, "1")


async def test_sixty_four_sandboxes_that_want_an_image_download_it_once(
    registry: Pusher, front: Front, cache: ImageCache, open_folder: Path
) -> None:
    registry.image("storm/it", "v1", [gz(tar((f"f{number}", b"1"))) for number in range(60)] * 2)
    name = f"docker://{front.host}/storm/it:v1"
    held = await asyncio.gather(*(cache.get(parse_image(name)) for _ in range(64)))
    assert set(front.requests.values()) == {1}, "120 layers, each of them twice"
    assert len(names(held[0])) == 60
    assert len({one.layers for one in held}) == 1
    for one in held:
        one.release()
    assert [entry.pinned for entry in cache.entries()] == [False]
    assert os.listdir(open_folder / "cache/filling") == []

"""Built images with common layers: what is stored, what a deletion leaves, and what a kill leaves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.images.built_images import BuiltEntry, BuiltImages, chosen
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import BuiltImage, parse_image
from tests.support.built_images import stored
from tests.support.image_files import place

MEBIBYTE = 1 << 20


def test_six_images_on_one_base_store_it_once(tmp_path: Path) -> None:
    base = os.urandom(2 * MEBIBYTE)
    for number in range(6):
        stored(tmp_path, "numbers", f"v{number}", 2, base)
    images = BuiltImages(tmp_path)
    found = images.images()
    assert images.bytes() < 9 * MEBIBYTE
    assert {(one.own_bytes // MEBIBYTE, one.shared_bytes // MEBIBYTE) for one in found} == {(1, 2)}
    deleted, freed = images.delete(found[1:])
    assert (len(deleted), freed // MEBIBYTE) == (5, 5)
    (left,) = images.images()
    assert (left.own_bytes // MEBIBYTE, left.shared_bytes) == (3, 0)


def test_the_least_recently_used_images_whose_own_blobs_free_enough_are_chosen() -> None:
    def entry(tag: str, *blobs: str) -> BuiltEntry:
        return BuiltEntry(BuiltImage("a", tag), Path(), "", frozenset(blobs), 0)

    one, two, three = entry("1", "base", "x"), entry("2", "base", "y"), entry("3", "z")
    sizes = {"base": 100, "x": 1, "y": 2, "z": 50}
    assert chosen([one, two, three], [one, two, three], sizes, 1) == [one]
    assert chosen([one, two, three], [one, two, three], sizes, 3) == [one, two]
    assert chosen([one, three], [one, two, three], sizes, 60) == [one, three]
    assert chosen([one], [one], sizes, 0) == []


def test_a_kill_before_any_change_leaves_every_image_complete_or_absent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.images.built_images_killed", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


async def test_images_are_written_deleted_and_pulled_at_the_same_time(open_folder: Path) -> None:
    shared, base = open_folder / "shared", os.urandom(MEBIBYTE)
    shared.mkdir()

    def write(name: str) -> None:
        for tag in ("v1", "v2", "v1"):
            stored(shared, name, tag, 2, base)

    def delete() -> None:
        images = BuiltImages(shared)
        for _ in range(20):
            images.delete([one for one in images.images() if one.image.tag == "v2"])

    async def pull(number: int) -> None:
        cache = ImageCache(open_folder / f"node{number}", CacheSettings(shared_folder=str(shared)))
        for _ in range(3):
            with await cache.get(parse_image("built:kept:v1")) as image:
                assert place(image, "base").read_bytes() == base

    stored(shared, "kept", "v1", 2, base)
    writes = [asyncio.to_thread(write, f"n{number}") for number in range(3)]
    await asyncio.gather(*writes, asyncio.to_thread(delete), pull(1), pull(2))
    delete()
    found = BuiltImages(shared).images()
    assert {one.image.text for one in found} == {"built:kept:v1", *(f"built:n{number}:v1" for number in range(3))}
    blobs = {digest.removeprefix("sha256:") for one in found for digest in one.parts}
    assert set(os.listdir(shared / "built/blobs/sha256")) == blobs


async def test_an_archive_of_an_older_version_is_named_in_the_error(open_folder: Path) -> None:
    older = open_folder / "node/built/numbers/v1.tar"
    older.parent.mkdir(parents=True)
    older.touch()
    with pytest.raises(ImageUnavailable, match=f"build the image again, or name this file, oci-archive:{older}"):
        await ImageCache(open_folder / "node").get(parse_image("built:numbers:v1"))

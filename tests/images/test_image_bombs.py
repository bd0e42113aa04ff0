"""Files of images made by an attacker: no memory, no disk and no thread beyond the bound, and nothing stays on the node."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.host.removed_folder import remove_folder
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.images.tree_size import bytes_on_disk
from rollyard.kinds.values.image_reference import parse_image
from tests.images import test_local_files
from tests.images.test_local_files import LayoutMaker, docker_archive
from tests.support.debian_packages import debian_program
from tests.support.image_registry import BASE, Pusher, gz, hard_link, symlink, tar


def deep_folder(folder: Path, depth: int) -> None:
    """Make nested folders. The path of the last one may be longer than the kernel takes."""
    folder.mkdir(exist_ok=True)
    above = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


@pytest.fixture
def small(open_folder: Path) -> ImageCache:
    return ImageCache(open_folder / "small", CacheSettings(cache_bytes=8 << 20))


@pytest.fixture
def squash(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    program = shutil.which("mksquashfs") or debian_program("squashfs-tools", "usr/bin/mksquashfs")
    if shutil.which("unsquashfs") is None:
        folder = debian_program("squashfs-tools", "usr/bin/unsquashfs").parent
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(tree: Path) -> Path:
        file = open_folder / "bomb.squashfs"
        subprocess.run([program, tree, file, "-noappend", "-quiet", "-no-progress"], check=True, capture_output=True)
        return file

    return make


def _left(folder: Path) -> list[str]:
    return [path.name for name in ("entries", "layers", "filling", "rubbish") for path in (folder / name).iterdir()]


@pytest.mark.parametrize("depth", [1500, 5000])
def test_a_folder_of_any_depth_is_deleted(open_folder: Path, depth: int) -> None:
    folder = open_folder / "deep"
    deep_folder(folder, depth)
    (folder / "d/closed").mkdir(mode=0)
    (folder / "d/link").symlink_to(open_folder)
    (folder / "d/file").write_text("")
    remove_folder(folder)
    assert os.listdir(open_folder) == []


async def test_a_squashfs_file_of_deep_folders_leaves_nothing(
    small: ImageCache, squash: Callable[[Path], Path], open_folder: Path
) -> None:
    deep_folder(open_folder / "tree", 1500)
    file = squash(open_folder / "tree")
    remove_folder(open_folder / "tree")
    with pytest.raises(ImageUnavailable, match="it has folders nested more than 200 deep"):
        await small.get(parse_image(str(file)))
    deep_folder(open_folder / "small/filling/sha256-0", 1500)
    ImageCache(open_folder / "small")
    assert _left(open_folder / "small") == []


async def test_a_squashfs_file_of_many_empty_folders_is_too_large(
    small: ImageCache, squash: Callable[[Path], Path], open_folder: Path
) -> None:
    for number in range((8 << 20) // 4096 + 1):
        (open_folder / "tree" / str(number)).mkdir(parents=True)
    with pytest.raises(ImageUnavailable, match="it needs more than the 8388608 bytes of the node's cache"):
        await small.get(parse_image(str(squash(open_folder / "tree"))))
    assert _left(open_folder / "small") == []


async def test_a_sparse_file_of_exabytes_is_not_read(small: ImageCache, open_folder: Path) -> None:
    file = open_folder / "sparse.squashfs"
    file.write_bytes(b"hsqs")
    os.truncate(file, 1 << 40)
    async with asyncio.timeout(20):
        with pytest.raises(ImageUnavailable, match="it needs more than the 8388608 bytes of the node's cache"):
            await small.get(parse_image(str(file)))


async def test_a_fifo_in_place_of_an_image_keeps_no_thread(small: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE)
    for path in ("f.squashfs", "f.sif", "f.tar", "layout/index.json"):
        (open_folder / path).unlink(missing_ok=True)
        os.mkfifo(open_folder / path)
    (open_folder / "zero.tar").symlink_to("/dev/zero")
    async with asyncio.timeout(20):
        for name in (
            "{}/f.squashfs",
            "{}/f.sif",
            "oci-archive:{}/f.tar",
            "docker-archive:{}/zero.tar",
            "oci:{}/layout",
        ):
            with pytest.raises(ImageUnavailable, match="it is a fifo or a device, not a file"):
                await small.get(parse_image(name.format(open_folder)))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE])
async def test_an_archive_with_a_giant_header_is_not_read_into_memory(
    small: ImageCache, open_folder: Path, kind: bytes
) -> None:
    giant = tarfile.TarInfo("giant")
    giant.type, giant.size = kind, 7 << 30
    file = open_folder / "bomb.tar"
    file.write_bytes(giant.tobuf())
    os.truncate(file, (8 << 30) + 4096)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ImageUnavailable, match=r"bomb.tar cannot be read: it has a "):
        await small.get(parse_image(f"oci-archive:{file}"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def _sparse_map(value: str) -> bytes:
    member = tarfile.TarInfo("sparse")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse"}
    member.size = 1024
    return member.tobuf(tarfile.PAX_FORMAT) + value.encode().ljust(1024, b"\0") + bytes(1024)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: _sparse_map("x"), "is not a tar archive"),
        (lambda: tar(("loop", symlink("loop")), ("manifest.json", hard_link("loop"))), r"has no manifest\.json"),
        (lambda: tar(("manifest.json", b"[" * 100_000)), "its manifest has no list of images"),
        (lambda: tar(*((str(number), None) for number in range(50_001))), "more than 50000 files"),
    ],
)  # fmt: skip
async def test_an_archive_that_makes_programs_fail_has_a_sentence(
    small: ImageCache, open_folder: Path, make: Callable[[], bytes], why: str
) -> None:
    (open_folder / "odd.tar").write_bytes(make())
    with pytest.raises(ImageUnavailable, match=why):
        await small.get(parse_image(f"docker-archive:{open_folder}/odd.tar"))


async def test_a_packed_layer_of_docker_save_is_unpacked_up_to_the_bound_only(
    small: ImageCache, open_folder: Path
) -> None:
    layers = [gzip.compress(tar(("big", bytes(6 << 20) + bytes([number])))) for number in range(3)]
    file = docker_archive(open_folder / "saved.tar", ("a/b:v1", layers), compressed=True)
    with pytest.raises(ImageUnavailable, match="it needs more than the 8388608 bytes of the node's cache"):
        await small.get(parse_image(f"docker-archive:{file}"))
    assert bytes_on_disk(open_folder / "small") < 9 << 20


async def test_layers_that_are_too_large_are_not_downloaded(
    registry: Pusher, small: ImageCache, open_folder: Path
) -> None:
    registry.image("bomb", "v1", [gz(tar((str(number), os.urandom(3 << 20)))) for number in range(3)])
    with pytest.raises(ImageUnavailable, match="it needs more than the 8388608 bytes of the node's cache"):
        await small.get(parse_image(f"docker://{registry.host}/bomb:v1"))
    assert bytes_on_disk(open_folder / "small/blobs") < 1 << 20


async def test_a_folder_with_a_configuration_without_end_has_a_sentence(open_folder: Path) -> None:
    from rollyard.images.folder_config import CONFIG_FILE, BadFolderConfig, read_folder_config

    config = open_folder / CONFIG_FILE
    zero = {"env": {"A": "\0"}, "entrypoint": [], "cmd": []}
    for data in (b"[" * 100_000, json.dumps({"entrypoint": 1}).encode(), json.dumps(zero).encode()):
        config.write_bytes(data)
        with pytest.raises(BadFolderConfig, match="delete it, or build the image again"):
            read_folder_config(open_folder)
    os.truncate(config, 1 << 40)
    with pytest.raises(BadFolderConfig, match="delete it, or build the image again"):
        read_folder_config(open_folder)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"Env": ["A=\0b"]}, "text that no program can be given"),
        ({"Env": ["A=\ud800"]}, "text that no program can be given"),
        ({"WorkingDir": "/a\0b"}, "text that no program can be given"),
        ({"Env": ["=x"]}, "a variable without a name"),
        ({"Env": [f"A{number}={'x' * 1000}" for number in range(1100)]}, "its variables have more than 1024 KiB"),
        ({"Env": ["A=" + "x" * (130 << 10)]}, "or one has more than 120 KiB"),
    ],
)
async def test_an_image_with_which_no_program_can_start_is_refused(
    small: ImageCache, open_folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object], why: str
) -> None:
    monkeypatch.setattr(test_local_files, "CONFIG", config)
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE)
    with pytest.raises(ImageUnavailable, match=why):
        await small.get(parse_image(f"oci:{layout.folder}"))

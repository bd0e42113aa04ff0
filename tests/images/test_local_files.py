"""Images of layouts, archives, SquashFS and SIF files: their content, their names, and what is said of broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import ImageNotFound, ImageUnavailable, SandboxStartFailed
from rollyard.images import squashfs_source, unpack
from rollyard.images.cache import ImageCache
from rollyard.images.cache_folder import CacheFolder
from rollyard.images.locks import try_lock
from rollyard.images.oci_manifest import MANIFEST_TYPES, machine
from rollyard.images.pinned_image import PinnedImage
from rollyard.images.settings import CacheSettings
from rollyard.images.unpacked_layers import layer_names
from rollyard.images.whole_file import write_whole
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.find_runtime import find_runtime
from tests.support.debian_packages import debian_program
from tests.support.image_files import names, place
from tests.support.image_registry import BASE, OCI_LAYER, Front, Pusher, digest, gz, tar
from tests.support.until import until
from tests.support.yard import alive

CONFIG = {"Env": ["GREETING=hello"], "WorkingDir": "/app"}
UPPER = gz(tar(("app", None), ("app/file", b"shipped\n"), ("bin/.wh.tool", b"")))
_OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
_REF = "org.opencontainers.image.ref.name"


class LayoutMaker:
    """An OCI layout under construction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listed: list[dict[str, Any]] = []
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, kind: str, data: bytes) -> dict[str, Any]:
        (self.folder / "blobs" / digest(data).replace(":", "/")).write_bytes(data)
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    def image(self, tag: str | None, *layers: bytes, architecture: str | None = None) -> str:
        ids = [digest(gzip.decompress(layer)) for layer in layers]
        rootfs = {"type": "layers", "diff_ids": ids}
        config = {"architecture": machine(), "os": "linux", "config": CONFIG, "rootfs": rootfs}
        parts = [
            self.blob(_OCI_CONFIG, json.dumps(config).encode()),
            *(self.blob(OCI_LAYER, layer) for layer in layers),
        ]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "config": parts[0], "layers": parts[1:]}
        listed = self.blob(MANIFEST_TYPES[0], json.dumps(manifest).encode())
        if tag is not None:
            listed["annotations"] = {_REF: tag}
        if architecture is not None:
            listed["platform"] = {"os": "linux", "architecture": architecture}
        self._listed.append(listed)
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self._listed}))
        return str(listed["digest"])

    def archive(self, file: Path) -> Path:
        with tarfile.open(file, "w") as archive:
            archive.add(self.folder, ".")
        return file


def docker_archive(file: Path, *images: tuple[str, list[bytes]], compressed: bool = False) -> Path:
    """Make an archive as `docker save` does: unpacked layers, named by a manifest.json."""
    entries: dict[str, bytes] = {}
    listed = []
    for name, layers in images:
        plain = [gzip.decompress(layer) for layer in layers]
        config = {
            "architecture": machine(), "os": "linux", "config": CONFIG,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in plain]},
        }  # fmt: skip
        data = json.dumps(config).encode()
        entries[f"{digest(data)[7:]}.json"] = data
        names = [f"{digest(layer)[7:]}/layer.tar" for layer in plain]
        entries |= dict(zip(names, layers if compressed else plain, strict=True))
        listed.append({"Config": f"{digest(data)[7:]}.json", "RepoTags": [name], "Layers": names})
    entries["manifest.json"] = json.dumps(listed).encode()
    file.write_bytes(tar(*entries.items()))
    return file


async def _check_content(cache: ImageCache, name: str) -> None:
    with await cache.get(parse_image(name)) as image:
        assert place(image, "app/file").read_text() == "shipped\n"
        assert not place(image, "bin/tool").exists()
        assert (image.config.workdir, dict(image.config.env)) == ("/app", {"GREETING": "hello"})
    assert name in cache.ready()


async def test_layouts_and_archives_share_one_copy(cache: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE, UPPER)
    archive = layout.archive(open_folder / "layout.tar")
    for name in (f"oci:{layout.folder}:v1", f"oci:{layout.folder}", f"oci-archive:{archive}:v1"):
        await _check_content(cache, name)
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("compressed", [False, True])
async def test_an_archive_of_docker_save(cache: ImageCache, open_folder: Path, compressed: bool) -> None:
    file = docker_archive(open_folder / "saved.tar", ("a/b:v1", [BASE, UPPER]), compressed=compressed)
    await _check_content(cache, f"docker-archive:{file}")
    await _check_content(cache, f"docker-archive:{file}:a/b:v1")


async def test_an_archive_of_an_old_release_links_equal_layers(cache: ImageCache, open_folder: Path) -> None:
    data = tar(("f", b"1"))
    config = json.dumps({"rootfs": {"diff_ids": [digest(data)] * 2}}).encode()
    entries = (
        ("c.json", config), ("a/layer.tar", data), ("b", None),
        ("b/layer.tar", {"type": tarfile.SYMTYPE, "linkname": "../a/layer.tar"}),
        ("manifest.json", json.dumps([{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]).encode()),
    )  # fmt: skip
    (open_folder / "old.tar").write_bytes(tar(*entries))
    with await cache.get(parse_image(f"docker-archive:{open_folder}/old.tar")) as image:
        assert place(image, "f").read_text() == "1"


async def test_what_skopeo_writes(cache: ImageCache, open_folder: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed")
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE, UPPER)
    for target in (
        f"oci:{open_folder}/l:v1", f"oci-archive:{open_folder}/l.tar:v1", f"docker-archive:{open_folder}/d.tar:a/b:v1",
    ):  # fmt: skip
        subprocess.run([skopeo, "copy", "-q", f"oci:{layout.folder}:v1", target], check=True)
        await _check_content(cache, target)


async def test_a_layer_of_a_registry_and_of_a_layout_is_kept_once(
    registry: Pusher, front: Front, cache: ImageCache, open_folder: Path
) -> None:
    layer = gz(tar(("big", os.urandom(1 << 20))))
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE, layer)
    await cache.prefetch(parse_image(f"oci:{layout.folder}"))
    registry.image("files/layer", "v1", [BASE, layer, UPPER])
    await cache.prefetch(parse_image(f"docker://{front.host}/files/layer:v1"))
    assert front.count(digest(layer)) == 0


async def test_the_image_of_this_machine_is_chosen(cache: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    layout.image(None, BASE, architecture="s390x")
    ours = layout.image(None, BASE, UPPER, architecture=machine())
    with await cache.get(parse_image(f"oci:{layout.folder}")) as image:
        assert image.digest == ours


async def test_a_changed_layout_is_another_image(cache: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    layout.image("v1", BASE)
    with await cache.get(parse_image(f"oci:{layout.folder}:v1")) as first:
        shutil.rmtree(layout.folder)
        layout = LayoutMaker(open_folder / "layout")
        layout.image("v1", BASE, UPPER)
        with await cache.get(parse_image(f"oci:{layout.folder}:v1")) as second:
            assert first.digest != second.digest
            assert place(second, "app/file").exists()


@contextlib.asynccontextmanager
async def filling(
    cache: ImageCache, folder: Path, name: str, lowest: bytes
) -> AsyncIterator[asyncio.Task[PinnedImage]]:
    """Yield a `get` that has begun to fill the cache, and waits inside the block: another one has the lowest layer's lock."""
    places = CacheFolder(folder)
    places.make()
    lock = try_lock(places.layers.lock_path(layer_names([lowest])[0]), shared=False)
    assert lock is not None
    task = asyncio.create_task(cache.get(parse_image(name)))
    try:
        await until(
            lambda: list((folder / "blobs").glob("sha256*"))
        )  # the configuration, which is read before the layers
        yield task
    finally:
        lock.release()
        await asyncio.wait([task])


async def test_a_file_that_is_written_again_has_not_changed(cache: ImageCache, open_folder: Path) -> None:
    """A build makes an image again, or an overlay copies the file: another inode, the same image."""
    layout = LayoutMaker(open_folder / "layout")
    listed = layout.image("v1", BASE)
    index = layout.folder / "index.json"
    async with filling(cache, open_folder / "cache", f"oci:{layout.folder}:v1", digest(BASE)) as task:
        write_whole(index, index.read_bytes())
    with task.result() as image:
        assert image.digest == listed


async def test_an_image_that_is_replaced_while_it_is_read_is_no_broken_one(
    cache: ImageCache, open_folder: Path
) -> None:
    file, name = open_folder / "saved.tar", f"docker-archive:{open_folder}/saved.tar"
    docker_archive(file, ("a/b:v1", [BASE]))
    async with filling(cache, open_folder / "cache", name, digest(gzip.decompress(BASE))) as task:
        docker_archive(file, ("a/b:v1", [UPPER]))
    error = task.exception()
    assert isinstance(error, ImageUnavailable)
    assert "changed while it was read: it is tried again" in error.why
    assert not error.permanent
    assert cache.entries() == []


async def test_no_image_is_kept_under_the_digest_of_the_one_before(cache: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    first = layout.image("v1", BASE)
    places, name = CacheFolder(open_folder / "cache"), f"oci:{layout.folder}:v1"
    places.make()
    lock = try_lock(places.lock_path(places.entry(first).name), shared=False)
    assert lock is not None
    task = asyncio.create_task(cache.get(parse_image(name)))
    await until(lambda: cache.known(parse_image(name)) == first)
    shutil.rmtree(layout.folder)
    second = LayoutMaker(open_folder / "layout").image("v1", BASE, UPPER)
    lock.release()
    with pytest.raises(ImageUnavailable, match="changed while it was read"):
        await task
    assert cache.entries() == []
    with await cache.get(parse_image(name)) as image:
        assert image.digest == second


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


async def test_broken_layouts_say_why(cache: ImageCache, open_folder: Path) -> None:
    layout = LayoutMaker(open_folder / "layout")
    name = f"oci:{layout.folder}"
    layout.image("v1", BASE, UPPER)
    _flip(layout.folder / "blobs" / digest(UPPER).replace(":", "/"))
    with pytest.raises(ImageUnavailable, match=rf"its blob {digest(UPPER)} is damaged: make the layout"):
        await cache.get(parse_image(name))
    layout.image("v2", BASE)
    with pytest.raises(ImageUnavailable, match=r"has 2 images, so its name needs a tag; write one of :v1, :v2"):
        await cache.get(parse_image(name))
    with pytest.raises(ImageUnavailable, match=r"no image with the tag v3; write one of :v1, :v2"):
        await cache.get(parse_image(f"{name}:v3"))
    with pytest.raises(ImageUnavailable, match=r"there is no OCI layout /nowhere/index\.json"):
        await cache.get(parse_image("oci:/nowhere"))
    (open_folder / "x.tar").write_bytes(b"x" * 2000)
    with pytest.raises(ImageUnavailable, match="is not a tar archive"):
        await cache.get(parse_image(f"docker-archive:{open_folder}/x.tar"))
    (open_folder / "x.tar.gz").write_bytes(gz(tar(("f", b"1"))))
    with pytest.raises(ImageUnavailable, match="is compressed: unpack it with gunzip"):
        await cache.get(parse_image(f"oci-archive:{open_folder}/x.tar.gz"))
    (open_folder / "docker.tar").write_bytes(tar(("f", b"1")))
    with pytest.raises(ImageUnavailable, match=r"docker\.tar has no manifest\.json"):
        await cache.get(parse_image(f"docker-archive:{open_folder}/docker.tar"))
    assert cache.entries() == []


async def test_a_damaged_archive_of_docker_save(cache: ImageCache, open_folder: Path) -> None:
    file = docker_archive(open_folder / "saved.tar", ("a/b:v1", [gz(tar(("big", bytes(1 << 20))))]))
    _flip(file)
    with pytest.raises(ImageUnavailable, match="damaged"):
        await cache.get(parse_image(f"docker-archive:{file}"))
    with pytest.raises(ImageUnavailable, match=r"it has no image c; write one of :a/b:v1"):
        await cache.get(parse_image(f"docker-archive:{file}:c"))


@pytest.mark.parametrize(
    ("name", "said"), [("x.def", r"`rollyard images build .*/x\.def`"), ("Dockerfile", "is a recipe")]
)
async def test_recipes_are_built_first(cache: ImageCache, name: str, said: str) -> None:
    with pytest.raises(ImageNotFound, match=said):
        await cache.get(parse_image(f"/recipes/{name}"))


# SquashFS


@pytest.fixture
def tree(open_folder: Path) -> Path:
    """A folder to make a file system of."""
    folder = open_folder / "tree"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed/file").write_text("1")
    (folder / "bin").mkdir()
    (folder / "bin/sh").write_text("x")
    (folder / "bin/sh").chmod(0o4555)
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    env = folder / ".singularity.d/env"
    env.mkdir(parents=True)
    (env / "10-docker2singularity.sh").write_text('#!/bin/sh\nexport GREETING="${GREETING:-"hello you"}"\n')
    (env / "90-environment.sh").write_text("export A=b # c\nexport PATH=/opt/bin:$PATH\nexport B=`id`\n")
    (folder / "closed").chmod(0o555)
    return folder


@pytest.fixture
def squash(tree: Path) -> Callable[[str], Path]:
    program = shutil.which("mksquashfs") or debian_program("squashfs-tools", "usr/bin/mksquashfs")

    def make(name: str) -> Path:
        file = tree.with_name(name)
        subprocess.run([program, tree, file, "-noappend", "-quiet"], check=True, stdout=subprocess.DEVNULL)
        return file

    return make


@pytest.fixture
def unsquashfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """unsquashfs on PATH, if it is not installed."""
    if shutil.which("unsquashfs") is None:
        folder = debian_program("squashfs-tools", "usr/bin/unsquashfs").parent
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def sif(squashfs: Path, file: Path, *, architecture: bytes = b"02\0", file_system: int = 1) -> Path:
    """Put a SquashFS file into a SIF file, behind another partition."""
    data, start = squashfs.read_bytes(), 8192
    partition = struct.Struct("<i?IIIqqqqqqq128s384s")
    other = partition.pack(0x4001, True, 1, 1, 0, 4096, 3, 3, 0, 0, 0, 0, b"recipe", b"")
    extra = struct.pack("<ii3s", file_system, 2, architecture)
    main = partition.pack(0x4004, True, 2, 1, 0, start, len(data), len(data), 0, 0, 0, 0, b"root", extra)
    launch = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0")
    head = launch + b"SIF_MAGIC\x0001\x0002\0".ljust(32, b"\0") + struct.pack("<8q", 0, 0, 0, 2, 128, 1170, start, 0)
    file.write_bytes((head + other + main).ljust(start, b"\0") + data)
    return file


@pytest.mark.usefixtures("unsquashfs")
@pytest.mark.skipif(machine() != "amd64", reason="the SIF file of the test is for amd64")
async def test_squashfs_and_sif_files(cache: ImageCache, squash: Callable[[str], Path], open_folder: Path) -> None:
    plain = squash("image.squashfs")
    for file in (plain, sif(plain, open_folder / "image.sif")):
        with await cache.get(parse_image(str(file))) as image:
            found = set(names(image))
            assert found == {"closed", "bin", "link", ".singularity.d"}
            assert place(image, "closed/file").read_text() == "1"
            assert place(image, "bin/sh").stat().st_mode & 0o7777 == 0o755
            assert place(image, "closed").stat().st_mode & 0o700 == 0o700
            assert image.config.env == {"GREETING": "hello you", "A": "b"}
    assert len(cache.entries()) == 2
    assert {str(plain), str(open_folder / "image.sif")} <= cache.ready()
    with await cache.get(parse_image(str(plain))):
        await cache.room.prune(1e12)
        assert len(cache.entries()) == 1


@pytest.mark.usefixtures("unsquashfs")
@pytest.mark.parametrize("same", [True, False])
async def test_a_squashfs_file_that_is_replaced_while_it_is_unpacked(
    cache: ImageCache, squash: Callable[[str], Path], open_folder: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    folder, other = open_folder / "open", open_folder / "other.squashfs"
    folder.mkdir()
    folder.chmod(0o777)  # the program that unpacks is the user of the sandboxes
    file = squash("image.squashfs").rename(folder / "image.squashfs")
    other.write_bytes(file.read_bytes() + bytes(0 if same else 4096))
    program = open_folder / "programs/unsquashfs"
    program.parent.mkdir()
    replaced = f"cp {other} {file}.new && mv {file}.new {file}"
    program.write_text(f'#!/bin/sh\n{replaced}\nexec {shutil.which("unsquashfs")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    if same:
        with await cache.get(parse_image(str(file))) as image:
            assert place(image, "closed/file").read_text() == "1"
    else:
        with pytest.raises(ImageUnavailable, match="changed while it was read"):
            await cache.get(parse_image(str(file)))
        assert cache.entries() == []


@pytest.mark.usefixtures("unsquashfs")
async def test_broken_sif_files_say_why(cache: ImageCache, squash: Callable[[str], Path], open_folder: Path) -> None:
    plain, file = squash("image.squashfs"), open_folder / "image.sif"
    for said, make in (
        ("built for linux/s390x", lambda: sif(plain, file, architecture=b"11\0")),
        ("ext3 file system, not SquashFS", lambda: sif(plain, file, file_system=2)),
        ("neither a SIF nor a SquashFS file", lambda: file.write_bytes(b"x" * 4096)),
        ("could not be unpacked into", lambda: file.write_bytes(plain.read_bytes()[:300])),
    ):
        make()
        with pytest.raises(ImageUnavailable, match=said):
            await cache.get(parse_image(str(file)))
    with pytest.raises(ImageUnavailable, match=r"there is no file /nowhere\.sif"):
        await cache.get(parse_image("/nowhere.sif"))
    small = ImageCache(open_folder / "small", CacheSettings(cache_bytes=1 << 10))
    with pytest.raises(ImageUnavailable, match="needs more than the 1024 bytes"):
        await small.get(parse_image(str(plain)))


async def test_without_a_program_the_error_names_one(
    cache: ImageCache, squash: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    file = squash("image.squashfs")
    monkeypatch.setattr(squashfs_source, "_FOLDERS", str(open_folder))
    monkeypatch.setenv("PATH", str(open_folder))
    monkeypatch.delenv("ROLLYARD_APPTAINER", raising=False)
    monkeypatch.setenv("ROLLYARD_CACHE", str(open_folder))
    with pytest.raises(ImageUnavailable, match="neither unsquashfs nor Apptainer: install the package squashfs-tools"):
        await cache.get(parse_image(str(file)))


async def test_apptainer_alone_unpacks_them_too(
    cache: ImageCache, squash: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    try:
        runtime = find_runtime("apptainer")
    except SandboxStartFailed:
        pytest.skip("apptainer does not start here")
    assert isinstance(runtime, Apptainer)
    real = open_folder / "real.sif"
    subprocess.run([runtime.program, "-s", "build", real, open_folder / "tree"], check=True)
    real.chmod(0o644)
    monkeypatch.setattr(squashfs_source, "_FOLDERS", str(open_folder))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    alone = open_folder / "apptainer"
    alone.write_text(f'#!/bin/sh\nexec {runtime.program} "$@"\n')
    alone.chmod(0o755)
    for program in (str(alone), runtime.program):  # the second has a program unsquashfs of its own
        monkeypatch.setenv("ROLLYARD_APPTAINER", program)
        for file in (real, squash("image.squashfs")):
            with await cache.get(parse_image(str(file))) as image:
                assert place(image, "closed/file").read_text() == "1"
        await cache.room.prune(1e12)


_GET = """
import asyncio, sys
from pathlib import Path
from rollyard.images.cache import ImageCache
from rollyard.kinds.values.image_reference import parse_image

async def main():
    with await ImageCache(Path(sys.argv[1])).get(parse_image(sys.argv[2])) as image:
        print(image.files.find(b"closed/file") is not None, flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def _process(cache: Path, image: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", _GET, str(cache), image]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("unsquashfs")
async def test_a_killed_filler_leaves_nothing(squash: Callable[[str], Path], open_folder: Path) -> None:
    """The node agent is killed while the program unpacks. Both processes below it end, and the next one succeeds."""
    file, slow, started = squash("image.squashfs"), open_folder / "slow/unsquashfs", open_folder / "said"
    slow.parent.mkdir()
    started.mkdir(mode=0o777)
    started.chmod(0o777)
    slow.write_text(f'#!/bin/sh\ncase "$*" in *-lln*) exit 0;; esac\necho $$ > {started}/pid\nexec sleep 600\n')
    slow.chmod(0o755)
    cache = open_folder / "cache"
    with _process(cache, str(file), PATH=f"{slow.parent}:{os.environ['PATH']}") as process:
        while not (text := (started / "pid").read_text() if (started / "pid").exists() else "").strip():
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.kill()
    while alive(int(text)):
        await asyncio.sleep(0.01)
    with _process(cache, str(file)) as process:
        assert await asyncio.to_thread(process.communicate) == (b"True\n", None)
    assert os.listdir(cache / "filling") == []


async def test_unpacking_has_a_limit_in_time(
    cache: ImageCache, squash: Callable[[str], Path], open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, slow = squash("image.squashfs"), open_folder / "slow/unsquashfs"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(unpack, "UNPACK_SECONDS", 0.5)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    with pytest.raises(ImageUnavailable, match=r"image\.squashfs cannot be used now: .* took more than 0\.5 s"):
        await cache.get(parse_image(str(file)))

"""Sandboxes of images whose layers lie in folders of their own: their files, and what deletes a layer."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.core.errors import ImageUnavailable, SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.images import unpacked_layers
from rollyard.images.cache import ImageCache
from rollyard.images.layer_stack import LayerStack
from rollyard.images.unpacked_layers import MOST_SEEN
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.images.test_differences import shown
from tests.images.test_layers_in_any_order import Entries, unpack
from tests.images.test_local_files import LayoutMaker
from tests.support.host_processes import seers_of_mounts
from tests.support.image_files import names, place
from tests.support.image_registry import BASE, Front, Pusher, digest, gz, hard_link, symlink, tar

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)
ADDED = ("dev", "proc", "opt", "workspace", "home", "run", "tmp", "var", "app")
"""Folders that a sandbox has although the image may lack them."""
LOW: Entries = [
    ("gone", None), ("gone/f", b"0"), ("gone/sub", None), ("gone/sub/g", b"0"), ("opaque", None), ("opaque/old", b"0"),
    ("opaque/deep", None), ("opaque/deep/x", b"0"), ("real", None), ("real/f", b"0"), ("way", symlink("real")),
    ("abs", symlink("/real")), ("file", b"0"), ("dir", None), ("dir/x", b"0"), (".hidden", b"0"), ("hard", b"0"),
    ("closed", {"type": b"5", "mode": 0o700, "mtime": 1_500_000_000}), ("closed/in", b"0"), ("shut/in", b"0"),
    ("shut", {"type": b"5", "mode": 0, "mtime": 1_500_000_000}), ("tmp", None), ("tmp/left", b"0"), ("proc", symlink("real")),
]  # fmt: skip
MIDDLE: Entries = [
    (".wh.gone", b""), ("opaque/.wh..wh..opq", b""), ("opaque/new", b"1"), ("way/through", b"1"), ("file", None),
    ("file/now", b"1"), ("dir", b"1"), ("other", hard_link("hard")), (".wh.tmp", b""), ("closed/.wh.in", b""),
    ("shut/more", b"1"), (".wh.proc", b""),
]  # fmt: skip
HIGH: Entries = [
    ("gone", None), ("gone/back", b"2"), ("dir", None), ("dir/y", b"2"), ("file", b"2"), ("abs/deep/er", b"2"),
    (".wh..hidden", b""), ("usr", None), ("usr/bin", None), ("usr/bin/x", b"2", 0o755), ("third", hard_link("other")),
]  # fmt: skip
TREE = """
import json, os, stat
found = {}
for above, folders, files in os.walk("/"):
    if above == "/":
        folders[:] = [name for name in folders if name not in ("dev", "proc")]
    for name in folders + files:
        path = os.path.join(above, name)
        info, text = os.lstat(path), ""
        if stat.S_ISLNK(info.st_mode):
            text = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            text = open(path).read() if not path.startswith("/opt/rollyard") else ""
        mode = 0 if stat.S_ISLNK(info.st_mode) else stat.S_IMODE(info.st_mode)
        time = info.st_mtime if info.st_mtime < 1_700_000_000 else 0.0
        found[path[1:]] = stat.filemode(info.st_mode)[0], mode, time, text
    folders[:] = [name for name in folders if os.path.join(above, name) != "/opt/rollyard"]
with open("/workspace/tree", "w") as file:
    json.dump(found, file)
print(os.stat("/other").st_ino == os.stat("/third").st_ino, os.access("/tmp", os.W_OK))
"""


@pytest.fixture(params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest, open_folder: Path) -> Bubblewrap | Apptainer:
    try:
        found = find_runtime(cast(RuntimeName, request.param))
    except SandboxStartFailed:
        pytest.skip(f"{request.param} does not start here")
    assert isinstance(found, Bubblewrap | Apptainer)
    return replace(found, mount=replace(found.mount, place=open_folder / "place"))


@pytest_asyncio.fixture
async def sandboxes(runtime: Bubblewrap | Apptainer, open_folder: Path) -> AsyncIterator[SandboxFactory]:
    cache, own = open_folder / "cache", own_python(node_cache())
    cache.mkdir(mode=0o755)
    (cache / own.name).symlink_to(own)  # made once for all tests
    async with SandboxFactory(runtime, cache=cache) as made:
        yield made


def layout(folder: Path, *layers: Entries) -> str:
    """Write an image as an OCI layout; return its name."""
    LayoutMaker(folder).image("v1", *(gz(tar(*layer)) for layer in layers))
    return f"oci:{folder}:v1"


def _holds_whiteouts(folder: Path) -> bool:
    try:
        os.mknod(folder / "whiteout", stat.S_IFCHR, 0)
    except PermissionError:
        return False
    return True


@pytest.mark.parametrize("count", [3, 2 * MOST_SEEN + 2])
async def test_a_sandbox_shows_the_files_of_a_plain_unpack(
    sandboxes: SandboxFactory, open_folder: Path, count: int
) -> None:
    many = [[(f"many/{n}", str(n).encode()), (f"many/.wh.{n - 1}", b"")] for n in range(count - 3)]
    layers: list[Entries] = [LOW, *many[::2], MIDDLE, *many[1::2], HIGH]
    image = parse_image(layout(open_folder / "layout", *layers))
    umask = os.umask(0)
    expected = {path: list(file) for path, file in shown(LayerStack([unpack(open_folder / "plain", *layers)])).items()}
    os.umask(umask)
    async with await sandboxes.start(SandboxSpec(image, LIMITS)) as sandbox:
        assert (await sandbox.ipython(TREE, 60)).output == "True True\n"
        found: dict[str, Any] = json.loads(await sandbox.read_file("/workspace/tree", 1 << 20))
        assert sandbox.image.image is not None
        seen = count if count < MOST_SEEN else count % MOST_SEEN + 1
        assert len(sandbox.image.image.layers) == (seen if _holds_whiteouts(open_folder) else 1)
    found = {path: file for path, file in found.items() if path in expected or path.split("/")[0] not in ADDED}
    assert found == expected


async def test_a_layer_that_a_sandbox_shows_outlives_every_eviction(
    sandboxes: SandboxFactory, open_folder: Path
) -> None:
    cache, base = sandboxes.images.cache, [("base", None), ("base/f", b"low")]
    used, other = (parse_image(layout(open_folder / name, base, [(name, b"own")])) for name in ("used", "other"))
    layers = open_folder / "cache/image-cache/layers"
    async with await sandboxes.start(SandboxSpec(used, LIMITS)) as sandbox:
        await cache.prefetch(other)
        assert len(os.listdir(layers)) == 3
        assert {one.name: one.shared_bytes > 0 for one in cache.entries()} == {used.text: True, other.text: True}
        assert await cache.room.prune(time.time() + 9) > 0
        assert [one.name for one in cache.entries()] == [used.text]
        assert len(os.listdir(layers)) == 2
        assert (await sandbox.bash('echo "$(</base/f) $(</used)"', 20)).output == "low own\n"
    await cache.room.prune(time.time() + 9)
    assert os.listdir(layers) == []


async def test_an_image_fetches_its_difference_alone(
    registry: Pusher, front: Front, cache: ImageCache, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [gz(tar((name, name.encode()))) for name in ("one", "two")]
    for number, layer in enumerate(own):
        registry.image("layers/shared", f"v{number}", [BASE, layer])
    held = []
    for number in range(2):
        held.append(await cache.get(parse_image(f"docker://{front.host}/layers/shared:v{number}")))
        await cache.room.prune(time.time() + 9)  # the files of the layers
    assert [front.count(digest(layer)) for layer in (BASE, *own)] == [1, 1, 1]
    assert held[0].layers[1] == held[1].layers[1]
    assert names(held[1]) == ["bin", "etc", "two"]
    place(held[0], "etc/name").unlink()  # a file of the layer that both share
    with pytest.raises(Exception, match="1 of its files and folders were deleted"):
        held[1].check_files()
    with pytest.raises(Exception, match="it is unpacked again once they have ended"):
        held[0].check()
    monkeypatch.setattr(unpacked_layers, "DAMAGED_SECONDS", 0.1)
    registry.image("layers/shared", "v2", [BASE])
    with pytest.raises(ImageUnavailable, match="is damaged, and in use: it is made again afterwards"):
        await cache.prefetch(parse_image(f"docker://{front.host}/layers/shared:v2"))
    again = asyncio.create_task(cache.get(parse_image(f"docker://{front.host}/layers/shared:v1")))
    held[1].release()
    await asyncio.sleep(0)
    held[0].release()
    with await again as image:
        assert place(image, "etc/name").read_text() == "base\n"


KILLED = """
import asyncio, os, signal, sys, time
from pathlib import Path
from rollyard.images.cache import ImageCache
from rollyard.images.layer_stack import LayerStack
from rollyard.kinds.values.image_reference import parse_image

folder, step, images = Path(sys.argv[1]), int(sys.argv[2]), [parse_image(name) for name in sys.argv[3:]]
FILES = ("unpacked_layers.py", "cache.py", "cache_folder.py", "cache_room.py", "fill_from_blobs.py")

async def work(cache):
    for image in images:
        await cache.prefetch(image)
    await cache.room.delete([one for one in cache.entries() if one.name == images[0].text])

def killed_at(number):
    left = number
    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    asyncio.run(work(ImageCache(folder)))
    sys.settrace(None)

async def check():
    cache = ImageCache(folder)
    for image in images:
        with await cache.get(image) as held:
            held.check_files()
            shown = {path: os.path.isdir(place) or open(place, "rb").read() for path, place in held.files.walk()}
            name = os.path.basename(image.text.split(":")[1]).encode()
            assert shown == {b"base": True, b"base/f": b"low", name: b"own"}, shown
            assert shown[b"base/f"] == b"low"
    await cache.room.prune(time.time() + 9)
    assert not any(os.listdir(folder / name) for name in ("entries", "layers", "filling", "rubbish"))

number = 1
while True:
    pid = os.fork()
    if pid == 0:
        killed_at(number)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    asyncio.run(check())
    if status == 0:
        break
    number += step
print("killed", number)
"""


@pytest.mark.parametrize("step", [211, pytest.param(3, marks=pytest.mark.long)])
def test_a_process_killed_at_any_line_leaves_nothing_that_is_used(open_folder: Path, step: int) -> None:
    images = [layout(open_folder / name, [("base", None), ("base/f", b"low")], [(name, b"own")]) for name in ("a", "b")]
    argv = [sys.executable, "-c", KILLED, open_folder / "cache", str(step), *images]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("killed ")


async def _wave(sandboxes: SandboxFactory, images: Sequence[str], size: int) -> None:
    specs = [SandboxSpec(parse_image(images[number % len(images)]), LIMITS) for number in range(size)]
    started = await asyncio.gather(*(sandboxes.start(spec, with_bash=False) for spec in specs))
    await asyncio.gather(*(one.close() for one in started))


@pytest.mark.parametrize(("waves", "size"), [(1, 4), pytest.param(20, 50, marks=pytest.mark.long)])
async def test_waves_of_sandboxes_leave_no_mount(
    sandboxes: SandboxFactory, open_folder: Path, waves: int, size: int
) -> None:
    base = [("base", None), ("base/f", b"low")]
    images = [layout(open_folder / f"i{n}", base, [(f"f{n}", b"own")]) for n in range(4)]
    for _ in range(waves):
        await _wave(sandboxes, images, size)
    assert list(seers_of_mounts(open_folder)) == []
    assert [one.pinned for one in sandboxes.images.cache.entries()] == [False] * 4

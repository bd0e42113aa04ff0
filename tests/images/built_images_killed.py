"""Kills processes that store and delete built images, at each change of a file in turn. Prints the number of kills.

python -m tests.images.built_images_killed FOLDER
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollyard.images.built_images import BuiltImages
from rollyard.kinds.values.image_reference import BuiltImage
from tests.support.built_images import manifest_and_config
from tests.support.image_registry import BASE, digest, gz, tar

KEPT, OTHER = BuiltImage("a/kept", "v1"), BuiltImage("other", "v1")
_CHANGES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.utime", "os.truncate")
LAYERS = [BASE, gz(tar(("own", b"1" * 9000)))]


def store(folder: Path, image: BuiltImage, layers: list[bytes]) -> None:
    images = BuiltImages(folder / "cache")

    async def write() -> None:
        async with images.writing():
            for layer in layers:
                file = folder / "layers" / digest(layer)
                images.add_layer(digest(layer), len(layer), file)
            images.add_image(image, *manifest_and_config(layers))

    asyncio.run(write())
    images.sweep()


def delete(folder: Path) -> None:
    images = BuiltImages(folder / "cache")
    images.delete([one for one in images.images() if one.image == OTHER])


def killed(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed before its change of this number. Return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(number, -1)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (event in _CHANGES or writes) and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def check(folder: Path, present: set[BuiltImage]) -> None:
    """Assert that all images are complete."""
    found = BuiltImages(folder / "cache").images()
    assert {one.image for one in found} - {OTHER} == present, found
    for one in found:
        assert one.parts
        for blob in one.parts:
            data = (folder / "cache/built/blobs/sha256" / blob.removeprefix("sha256:")).read_bytes()
            assert digest(data) == blob


def main(folder: Path) -> int:
    (folder / "layers").mkdir()
    for layer in (*LAYERS, gz(tar(("new", b"2")))):
        (folder / "layers" / digest(layer)).write_bytes(layer)
    kills = 0
    for work, before in (
        (lambda: store(folder, OTHER, [*LAYERS, gz(tar(("new", b"2")))]), None),
        (lambda: store(folder, OTHER, [BASE]), [*LAYERS, gz(tar(("new", b"2")))]),
        (lambda: delete(folder), [BASE, gz(tar(("new", b"2")))]),
    ):
        for number in itertools.count():
            shutil.rmtree(folder / "cache", ignore_errors=True)
            store(folder, KEPT, LAYERS)
            if before is not None:
                store(folder, OTHER, before)
            if not killed(number, work):
                break
            kills += 1
            check(folder, {KEPT})
            work()
            check(folder, {KEPT})
            delete(folder)
            named = {
                digest.removeprefix("sha256:") for one in BuiltImages(folder / "cache").images() for digest in one.parts
            }
            blobs = os.listdir(folder / "cache/built/blobs/sha256")
            assert {name for name in blobs if not name.startswith(".")} == named
    return kills


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))

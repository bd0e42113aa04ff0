"""Layers of what commands change in an image: each change is exact, and new builds on a base keep the base's layers."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import zstandard

from rollyard.images.cache import ImageCache
from rollyard.kinds.values.image_reference import parse_image
from tests.image_builds.conftest import Builder

BASE = """\
FROM ../base
RUN mkdir -p /d/sub /gone/deep /moved && echo 1 > /d/kept && echo 1 > /d/old && echo 2 > /d/sub/x && echo 3 > /gone/deep/y \\
 && echo 4 > /moved/z && echo 5 > /same && ln /same /d/second && ln -s kept /d/link && chmod 700 /d/sub && echo 6 > /touched \\
 && mkdir /again && echo 7 > /again/old
"""
CHANGES = """\
RUN rm -r /gone && rm -r /d && mkdir /d && mkdir /d/sub && echo new > /d/kept && mv /moved /elsewhere \\
 && echo more >> /same && : >> /touched && chmod 0750 /again && mkdir /fresh && ln /same /fresh/third \\
 && rm /etc/passwd && rm -r /tmp && ln -s /fresh /tmp && rm -rf /again/* && mkfifo /fresh/fifo
"""


def names(layer: Path) -> list[str]:
    with (
        open(layer, "rb") as file,
        tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(file), mode="r|") as tar,
    ):
        return [member.name for member in tar]


def layers_of(builder: Builder, layout: Path) -> list[dict[str, str]]:
    (named,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads((layout / "blobs" / named["digest"].replace(":", "/")).read_bytes())
    return list(manifest["layers"])


async def test_a_step_has_exactly_its_changes(builder: Builder, runtime: str) -> None:
    root = await builder.root(BASE + CHANGES, runtime=runtime, network="none")
    assert sorted(os.listdir(root / "d")) == ["kept", "sub"]
    assert os.listdir(root / "d/sub") == []
    assert [(root / name).exists() for name in ("gone", "moved", "etc/passwd", "again/old")] == [False] * 4
    assert ((root / "d/kept").read_text(), (root / "elsewhere/z").read_text()) == ("new\n", "4\n")
    assert (root / "same").read_text() == "5\nmore\n"
    assert (root / "same").stat().st_ino == (root / "fresh/third").stat().st_ino
    assert stat.S_IMODE((root / "again").stat().st_mode) == 0o750
    assert os.readlink(root / "tmp") == "/fresh"
    layer = max((builder.cache / "image-builds/layers").iterdir(), key=lambda path: path.stat().st_mtime)
    found = names(layer)
    assert "touched" not in found, "it was opened for writing, and is as before"
    assert not [name for name in found if name.startswith(("bin", "usr", "etc/r", "etc/h", "opt", "proc"))], found
    assert {".wh.gone", ".wh.moved", "etc/.wh.passwd", "again/.wh.old", "d/.wh.old", "d/sub/.wh.x"} <= set(found)


async def test_an_image_on_an_image_keeps_its_layers_and_is_unpacked_once(builder: Builder) -> None:
    base, layout = f"oci-archive:{builder.folder / 'base.tar'}", builder.folder / "layout"
    await builder.build("FROM ../base\nRUN echo 1 > /one\nRUN echo 2 > /two\n", outputs=[base, f"oci:{layout}"])
    cache = ImageCache(builder.cache / "image-cache")
    for number in range(2):
        further = builder.folder / f"layout-{number}"
        await builder.build(f"FROM {base}\nRUN rm /two; echo {number} > /own\n", outputs=[f"oci:{further}"])
        assert layers_of(builder, further)[:-1] == layers_of(builder, layout)
        with await cache.get(parse_image(f"oci:{further}")) as image:
            assert image.files.find(b"two") is None
            assert Path(os.fsdecode(image.files.find(b"own") or b"")).read_text() == f"{number}\n"
    assert len(list((builder.cache / "image-cache/layers").iterdir())) == 3 + 2


async def test_the_second_build_on_a_base_unpacks_nothing_of_it(builder: Builder) -> None:
    base = f"oci-archive:{builder.folder / 'base.tar'}"
    await builder.build("FROM ../base\nRUN echo 1 > /one\n", outputs=[base])
    await builder.build(f"FROM {base}\nRUN echo 2 > /two\n")
    unpacked = {path: path.stat().st_ctime_ns for path in (builder.cache / "image-cache/layers").glob("*/root")}
    for blob in (builder.cache / "image-cache/blobs").iterdir():
        blob.unlink()
    await builder.build(f"FROM {base}\nRUN echo 3 > /three\n")
    assert {path: path.stat().st_ctime_ns for path in unpacked} == unpacked

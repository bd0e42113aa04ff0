"""The --mount of a RUN, and bases that lack the folders of the kernel, on each runtime."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rollyard.core.errors import ImageBuildFailed, SandboxStartFailed
from tests.image_builds.conftest import Builder

pytestmark = pytest.mark.slow(20)

MOUNTS = """\
FROM ../base AS made
RUN mkdir /out && echo made > /out/made
FROM ../base
WORKDIR /work
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked --mount=type=tmpfs,target=/tmp/build \\
    test -d /root/.cache/pip && echo x > /root/.cache/pip/wheel && echo x > /tmp/build/x && ls -A /tmp > seen
RUN --mount=type=bind,source=lock.txt,target=lock.txt --mount=target=/src,readonly \\
    --mount=from=made,source=/out,target=/made \\
    cat lock.txt /src/sub/file /made/made > got && ls /src > listed && echo more > /src/own
"""


def _paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


async def test_a_run_sees_its_mounts_and_the_image_keeps_nothing_of_them(builder: Builder, runtime: str) -> None:
    builder.write({"lock.txt": "1\n", "sub/file": "2\n", ".dockerignore": "Dockerfile\nsecret\n", "secret": ""})
    root = await builder.root(MOUNTS, runtime=runtime, network="none")
    assert (root / "work/got").read_text() == "1\n2\nmade\n"
    assert (root / "work/listed").read_text() == "lock.txt\nsub\n"
    assert _paths(root) - _paths(builder.folder / "base") == {
        ".rollyard-image.json", "work", "work/seen", "work/got", "work/listed",
    }  # fmt: skip
    assert not (builder.context / "own").exists(), "the command has a copy"
    await builder.build(MOUNTS, runtime=runtime, network="none")
    assert sum("as before" in one for one in builder.said) == 4
    builder.write({"lock.txt": "3\n"})
    await builder.build(MOUNTS, runtime=runtime, network="none")
    assert sum("as before" in one for one in builder.said) == 3, "the step that sees the file is done again"


async def test_a_base_without_dev_proc_sys_etc_and_tmp(builder: Builder, runtime: str) -> None:
    base = builder.folder / "base"
    for name in ("dev", "proc", "etc", "tmp", "root", "usr"):
        shutil.rmtree(base / name)
    root = await builder.root("FROM ../base\nRUN echo $(id -u) > /made && echo > /dev/null\n", runtime=runtime)
    assert (root / "made").read_text() == "0\n"
    assert sorted(os.listdir(root)) == [".rollyard-image.json", "bin", "made"]


async def test_a_base_with_a_file_in_place_of_dev_has_a_sentence(builder: Builder, runtime: str) -> None:
    shutil.rmtree(builder.folder / "base/dev")
    (builder.folder / "base/dev").touch()
    with pytest.raises(SandboxStartFailed, match="/dev of the image is a file: it must be a folder"):
        await builder.build("FROM ../base\nRUN true\n", runtime=runtime)


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ("type=secret,id=key", "--mount=type=secret is not supported: write type=bind, cache or tmpfs, or COPY"),
        ("type=cache", "names no folder: add target=PATH"),
        ("source=missing,target=/x", "the context has no missing"),
    ],
)
async def test_a_mount_that_cannot_be_made_names_the_line(builder: Builder, mount: str, said: str) -> None:
    with pytest.raises(ImageBuildFailed, match=f"Dockerfile:2: .*{said}"):
        await builder.build(f"FROM ../base\nRUN --mount={mount} true\n")

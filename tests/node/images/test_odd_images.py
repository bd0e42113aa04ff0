"""Images that lack something or are built in an unusual way: each gives a working bash and IPython, with each runtime."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.core.node_cache import node_cache
from rollyard.node.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.node.sandbox.bundled_python import own_python
from rollyard.node.sandbox.find_runtime import RuntimeName, find_runtime
from rollyard.node.sandbox.sandbox import SandboxFactory
from tests.support.image_registry import Pusher, debian_program, gz, symlink, tar

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)
OLD_PYTHON = b"""#!/bin/sh
case "$*" in
--version) echo Python 3.6.15;;
*) echo 'SyntaxError: invalid syntax' >&2; exit 1;;
esac
"""
"""A stand-in for an old Python, which Debian does not have: it names its version and runs nothing."""


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """A node's folder. Both runtimes share its images."""
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    own = own_python(node_cache())
    (folder / own.name).symlink_to(own)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def busybox() -> bytes:
    return debian_program("busybox-static", "bin/busybox").read_bytes()


@pytest.fixture(scope="module")
def musl() -> bytes:
    """The C library of Alpine, which is its own program loader."""
    return next(debian_program("musl", "lib").glob("*-linux-musl/libc.so")).read_bytes()


@pytest.fixture(params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    try:
        return find_runtime(cast(RuntimeName, request.param))
    except SandboxStartFailed:
        pytest.skip(f"{request.param} does not start here")


async def _works(runtime: Runtime, cache: Path, image: str, command: str) -> str:
    """Try bash and IPython in a sandbox, and return what the command prints."""
    async with (
        SandboxFactory(runtime, cache=cache) as sandboxes,
        await sandboxes.start(SandboxSpec(image, LIMITS)) as box,
    ):
        assert (await box.bash("echo hi > /tmp/f && echo $(</tmp/f)", 30)).output == "hi\n"
        cell = await box.ipython("import sys, json, sqlite3, ssl\nprint(sys.version_info >= (3, 11)); 1+1", 60)
        assert cell.output.split() == ["True", "2"], cell.output
        return (await box.bash(command, 30)).output


async def test_no_python(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes) -> None:
    layer = tar(
        ("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")), ("bin/ls", symlink("busybox"))
    )
    registry.image("odd/no-python", "v1", [gz(layer)])
    image = f"docker://{registry.host}/odd/no-python:v1"
    assert (
        await _works(runtime, cache, image, "echo /bin/*; python3 -c 'print(6*7)'")
        == "/bin/busybox /bin/ls /bin/sh\n42\n"
    )


async def test_an_old_python(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes) -> None:
    layer = tar(
        ("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")),
        ("usr", None), ("usr/bin", None), ("usr/bin/python3", OLD_PYTHON, 0o755), ("usr/bin/python", symlink("python3")),
    )  # fmt: skip
    registry.image("odd/old-python", "v1", [gz(layer)], {"Env": ["PYTHONHOME=/nowhere", "PYTHONPATH=/nowhere"]})
    image = f"docker://{registry.host}/odd/old-python:v1"
    assert await _works(runtime, cache, image, "python3 --version") == "Python 3.6.15\n"


async def test_musl(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes, musl: bytes) -> None:
    layer = tar(
        ("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")), ("bin/head", symlink("busybox")),
        ("lib", None), ("lib/ld-musl.so.1", musl, 0o755), ("etc", None), ("etc/alpine-release", b"3.20.0\n"),
    )  # fmt: skip
    registry.image("odd/musl", "v1", [gz(layer)])
    image = f"docker://{registry.host}/odd/musl:v1"
    assert "musl libc" in await _works(runtime, cache, image, "/lib/ld-musl.so.1 2>&1 | head -n 1")


async def test_another_user_and_working_folder(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes) -> None:
    owned = {"uid": 1234, "gid": 1234, "mode": 0o700, "type": b"5"}
    layer = tar(
        ("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")),
        ("srv", None), ("srv/app", owned), ("srv/app/file", b"private\n", 0o600),
        ("etc", None), ("etc/passwd", b"app:x:1234:1234::/srv/app:/bin/sh\n"),
    )  # fmt: skip
    registry.image(
        "odd/user", "v1", [gz(layer)], {"User": "app:1234", "WorkingDir": "/srv/app", "Env": ["HOME=/srv/app"]}
    )
    image = f"docker://{registry.host}/odd/user:v1"
    assert (
        await _works(runtime, cache, image, "pwd; echo $(<file) && echo x > new && echo $(<new)")
        == "/srv/app\nprivate\nx\n"
    )


async def test_twenty_thousand_small_files(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes) -> None:
    names = [f"data/{number % 100}/{number}" for number in range(20_000)]
    folders = [(f"data/{number}", None) for number in range(100)]
    layer = tar(
        ("bin", None),
        ("bin/busybox", busybox, 0o755),
        ("data", None),
        *folders,
        *((name, name.encode()) for name in names),
    )
    registry.image("odd/many", "v1", [gz(layer)])
    image = f"docker://{registry.host}/odd/many:v1"
    count = "/bin/busybox find /data -type f | /bin/busybox wc -l; echo $(</data/99/19999)"
    assert await _works(runtime, cache, image, count) == "20000\ndata/99/19999\n"


async def test_closed_folders_and_a_bin_that_is_a_link(
    runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes
) -> None:
    closed = {"type": b"5", "mode": 0o555}
    layer = tar(
        ("usr", None), ("usr/bin", None), ("usr/bin/busybox", busybox, 0o755), ("usr/bin/sh", symlink("busybox")),
        ("bin", symlink("usr/bin")), ("etc", closed), ("etc/name", b"shipped\n", 0o444),
    )  # fmt: skip
    registry.image("odd/closed", "v1", [gz(layer)])
    image = f"docker://{registry.host}/odd/closed:v1"
    assert await _works(runtime, cache, image, "echo $(</etc/name); /bin/busybox echo run") == "shipped\nrun\n"

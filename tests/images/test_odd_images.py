"""Images that lack something or are built in an unusual way: each gives a working bash and IPython, with each runtime."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.debian_packages import debian_program
from tests.support.image_registry import Pusher, gz, symlink, tar

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
        await sandboxes.start(SandboxSpec(parse_image(image), LIMITS)) as box,
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
        await _works(runtime, cache, image, "pwd; echo $(<file) && echo x > new && echo $(<new); echo $UID $HOME $USER")
        == "/srv/app\nprivate\nx\n1234 /srv/app app\n"
    )


@pytest.mark.parametrize(
    ("user", "said"),
    [("1234:999", "1234 999 /home/agent agent"), ("nobody", "65534 7 /var nobody"), ("", "0 0 /root root")],
)
async def test_the_user_of_an_image(
    runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes, user: str, said: str
) -> None:
    layer = tar(
        ("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")), ("bin/id", symlink("busybox")),
        ("etc", None), ("etc/passwd", b"nobody:x:65534:7::/var:/bin/sh\n"), ("var", None), ("root", None),
    )  # fmt: skip
    name = f"odd/user-{user.partition(':')[0] or 'none'}"
    registry.image(name, "v1", [gz(layer)], {"User": user} if user else {})
    command = "echo $(id -u) $(id -g) $HOME $USER; echo x > /etc/x && echo $(</etc/x)"
    assert await _works(runtime, cache, f"docker://{registry.host}/{name}:v1", command) == f"{said}\nx\n"


async def test_a_user_whom_the_image_does_not_know_is_named(
    runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes
) -> None:
    registry.image("odd/nobody", "v1", [gz(tar(("bin", None), ("bin/busybox", busybox, 0o755)))], {"User": "ghost"})
    async with SandboxFactory(runtime, cache=cache) as sandboxes:
        with pytest.raises(SandboxStartFailed, match="the image names the user 'ghost', who is not in its /etc/passwd"):
            await sandboxes.start(SandboxSpec(parse_image(f"docker://{registry.host}/odd/nobody:v1"), LIMITS))


async def test_a_relative_working_folder_is_one_for_all_tools(
    runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes
) -> None:
    layer = tar(("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")), ("app", None))
    registry.image("odd/relative", "v1", [gz(layer)], {"WorkingDir": "app"})
    image = f"docker://{registry.host}/odd/relative:v1"
    async with (
        SandboxFactory(runtime, cache=cache) as there,
        await there.start(SandboxSpec(parse_image(image), LIMITS)) as box,
    ):
        assert box.workdir == "/app"
        assert (await box.edit("create", "edited", file_text="y\n")).ok
        assert (await box.bash("pwd; cd /; echo /app/*", 10)).output == "/app\n/app/edited\n"
        assert (await box.ipython("import os; os.getcwd()", 60)).output == "'/app'\n"


async def test_variables_entrypoint_and_command_of_an_image(
    runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes
) -> None:
    """An entry point that refuses arguments and a command that ends are not run; a library that cannot be loaded in advance is
    said by the loader alone."""
    layer = tar(("bin", None), ("bin/busybox", busybox, 0o755), ("bin/sh", symlink("busybox")))
    variables = ["A=x y", "P=a\\ b", "LD_PRELOAD=/nowhere/lib.so", "HOME=/made", "EMPTY="]
    registry.image(
        "odd/config", "v1", [gz(layer)],
        {"Env": variables, "Entrypoint": ["/bin/busybox", "false"], "Cmd": ["/bin/busybox", "true"]},
    )  # fmt: skip
    said = await _works(
        runtime, cache, f"docker://{registry.host}/odd/config:v1", 'echo "$A|$P|$LD_PRELOAD|$HOME|$EMPTY|${NONE-unset}"'
    )
    assert said == "x y|a\\ b|/nowhere/lib.so|/made||unset\n"


async def test_an_image_with_one_program_alone(runtime: Runtime, cache: Path, registry: Pusher, busybox: bytes) -> None:
    registry.image("odd/scratch", "v1", [gz(tar(("busybox", busybox, 0o755)))])
    assert (
        await _works(runtime, cache, f"docker://{registry.host}/odd/scratch:v1", "/busybox ls /busybox") == "/busybox\n"
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

"""Builds of Dockerfiles on each runtime, and what is in the images afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from rollyard.core.errors import ImageBuildFailed
from rollyard.images.cache import ImageCache
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.image_builds.conftest import Builder
from tests.support.image_files import place
from tests.support.image_registry import Pusher, digest, running_registry
from tests.support.open_python import open_python
from tests.support.small_roots import debian_archive

pytestmark = pytest.mark.slow(95)

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)

MANY = """\
# syntax=docker/dockerfile:1
ARG BASE=../base
FROM ${BASE} AS made
ARG VERSION=1.0
ENV GREETING="hello $VERSION" EMPTY= \\
    # a comment in between
    PLAIN=a\\ b
WORKDIR /app
COPY src/ ./
COPY --chmod=755 --chown=daemon one.txt two.txt texts/
ADD packed.tar.gz /packed
RUN chown 7:7 one && mknod /null c 1 3; id -u > user; umask > mask && pwd > where
RUN <<END
set -e
echo "$GREETING, $VERSION" > greeting
rm /etc/passwd
mkdir -p /deep/er && touch /deep/er/file
END
RUN ["/bin/sh", "-c", "ip link | grep -c : > links; cat /etc/resolv.conf > /dev/null"]
SHELL ["/bin/sh", "-e", "-c"]
RUN rm -r /deep; ln -s /app/where /link; echo changed >> one

FROM made
COPY --from=made /app/greeting /copied/greeting
COPY <<FIRST <<"SECOND" /texts/
$GREETING
FIRST
$GREETING
SECOND
USER somebody
LABEL a=b
EXPOSE 80
ENTRYPOINT ["/bin/sh"]
CMD ["-c", "true"]
"""


async def test_a_dockerfile_becomes_an_image_with_all_that_it_says(builder: Builder, runtime: str) -> None:
    builder.write({"src/one": "1\n", "src/sub/two": "2\n", "one.txt": "1", "two.txt": "2"})
    subprocess.run(["tar", "czf", "packed.tar.gz", "-C", "src", "."], cwd=builder.context, check=True)
    root = await builder.root(MANY, runtime=runtime, network="none", arguments={"VERSION": "2"})

    def text(name: str) -> str:
        return (root / name).read_text()

    assert (text("app/one"), text("app/sub/two"), text("app/texts/one.txt")) == ("1\nchanged\n", "2\n", "1")
    assert (text("app/greeting"), text("copied/greeting")) == ("hello 2, 2\n", "hello 2, 2\n")
    assert (text("app/user"), text("app/where"), os.readlink(root / "link")) == ("0\n", "/app\n", "/app/where")
    assert text("packed/sub/two") == "2\n"
    assert (text("texts/FIRST"), text("texts/SECOND")) == ("hello 2\n", "$GREETING\n")
    assert stat.S_IMODE((root / "app/texts/two.txt").stat().st_mode) == 0o755
    assert text("app/links") == "2\n", "a loopback and its address, no more"
    gone = ["etc/passwd", "deep", "null", "opt", "etc/resolv.conf", "etc/hosts"]
    assert [name for name in gone if (root / name).exists()] == []
    config = json.loads(text(".rollyard-image.json"))
    assert config == {
        "env": {"GREETING": "hello 2", "EMPTY": "", "PLAIN": "a b"},
        "workdir": "/app",
        "user": "somebody",
        "entrypoint": ["/bin/sh"],
        "cmd": ["-c", "true"],
    }
    told = "\n".join(builder.said)
    for words in ("EXPOSE has no effect", "--chown has no effect", "USER is kept"):
        assert words in told
    assert (builder.folder / "base/etc/passwd").exists(), "the folder that FROM names stays as it is"


async def test_a_sandbox_shows_the_built_image(builder: Builder, runtime: str) -> None:
    image = await builder.root("FROM ../base\nENV A=b\nWORKDIR /app\nRUN echo built > file\n")
    sandboxes = SandboxFactory(find_runtime(cast(RuntimeName, runtime)), cache=builder.cache)
    async with sandboxes, await sandboxes.start(SandboxSpec(parse_image(str(image)), LIMITS)) as sandbox:
        assert (await sandbox.bash('echo "$A $PWD $(cat file)"', 20)).output == "b /app built\n"
        assert (await sandbox.ipython("open('file').read()", 20)).output.strip() == "'built\\n'"


async def test_a_sandbox_starts_from_a_built_archive(builder: Builder, runtime: str) -> None:
    archive = f"oci-archive:{builder.folder / 'built.tar'}"
    await builder.build("FROM ../base\nENV A=b\nWORKDIR /app\nRUN echo built > file\n", outputs=[archive])
    sandboxes = SandboxFactory(find_runtime(cast(RuntimeName, runtime)), cache=builder.cache)
    async with sandboxes, await sandboxes.start(SandboxSpec(parse_image(archive), LIMITS)) as sandbox:
        assert (await sandbox.bash('echo "$A $PWD $(cat file)"', 20)).output == "b /app built\n"
    again = await builder.root(f"FROM {archive}\nRUN cat file >> file2\n")
    assert (again / "app/file2").read_text() == "built\n"


@pytest.mark.heavy
@pytest.mark.parametrize("runtime", ["bubblewrap", pytest.param("apptainer", marks=pytest.mark.long)], indirect=True)
async def test_apt_installs_packages_with_one_user(builder: Builder, runtime: str) -> None:
    """A package whose files and set-up scripts belong to other users, from a file: no network is needed."""
    package = builder.context / "package"
    builder.write(
        {
            "package/DEBIAN/control": "Package: greet\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n",
            "package/DEBIAN/postinst": "#!/bin/sh\nset -e\nadduser --system --group --home /var/greet greeter || "
            "useradd -r -m -d /var/greet greeter\nchown greeter:greeter /usr/bin/greet\nchmod 4755 /usr/bin/greet\n",
            "package/usr/bin/greet": "#!/bin/sh\necho greetings\n",
            "package/etc/greet.d/README": "as in the package sudo\n",
        }
    )
    for name in ("DEBIAN/postinst", "usr/bin/greet"):
        (package / name).chmod(0o755)
    (package / "etc/greet.d/README").chmod(0o440)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", package], check=True, capture_output=True)
    shutil.copyfile(debian_archive(), builder.context / "debian.tar")
    dockerfile = """
        FROM scratch
        ADD debian.tar /
        COPY package.deb /tmp/
        RUN apt-get install -y /tmp/package.deb && greet > /said && rm /tmp/package.deb
        """
    root = await builder.root(dockerfile, runtime=runtime, network="none")
    assert (root / "said").read_text() == "greetings\n", builder.output
    assert "greeter" in (root / "etc/passwd").read_text()
    assert not (root / "etc/apt/apt.conf.d/rollyard").exists()


async def test_what_is_as_before_is_not_done_again(builder: Builder) -> None:
    builder.write({"early": "1", "late": "1"})
    dockerfile = "FROM ../base\nCOPY early /\nRUN cat early > seen\nCOPY late /\nRUN cat late >> seen\n"
    first = await builder.build(dockerfile)
    assert builder.done == dockerfile.splitlines()[1:]
    assert await builder.build(dockerfile) == first
    assert builder.done == []
    os.utime(builder.context / "early")
    builder.write({"late": "2"})
    second = await builder.build(dockerfile)
    assert second != first
    assert builder.done == ["COPY late /", "RUN cat late >> seen"]
    layers = builder.cache / "image-builds" / "layers"
    newest = max(layers.iterdir(), key=lambda path: path.stat().st_mtime)
    newest.unlink()
    await builder.build(dockerfile)
    assert len(builder.done) == 1, "a step whose layer is gone is done again"
    await builder.build(dockerfile, use_cache=False)
    assert builder.done == dockerfile.splitlines()[1:]


async def test_a_stage_that_nothing_needs_is_not_built(builder: Builder) -> None:
    dockerfile = "FROM ../base AS wrong\nRUN false\nFROM ../base AS right\nRUN true\nFROM wrong\n"
    await builder.build(dockerfile, target="right")
    assert builder.done == ["RUN true"]


async def test_a_failed_command_names_its_line(builder: Builder, left_over: Callable[[], list[str]]) -> None:
    with pytest.raises(ImageBuildFailed, match=r"Dockerfile:3: RUN echo so; exit 7 ended with exit status 7"):
        await builder.build("FROM ../base\n\nRUN echo so; exit 7\n")
    assert builder.output == "so\n"
    assert left_over() == []
    with pytest.raises(ImageBuildFailed, match="exit status 127"):
        await builder.build('FROM ../base\nRUN ["/no/such"]\n')
    assert "the image may lack this program" in builder.output


async def test_texts_longer_than_an_argument_of_a_program_are_run_and_copied(builder: Builder) -> None:
    filler = f"# {'x' * 98}\n" * 1400
    body = f"a=1\n{filler}echo $a $0 > /told\n"
    root = await builder.root(
        f"FROM ../base\nRUN <<END\n{body}END\nRUN wc -c <<END > /size\n{filler}END\nCOPY <<END /copied\n{filler}END\n"
    )
    assert (root / "told").read_text() == "1 /bin/sh\n"
    assert (root / "size").read_text().strip() == str(len(filler))
    assert (root / "copied").read_text() == filler
    with pytest.raises(ImageBuildFailed, match=r"Dockerfile:3: .* COPY it into the image as a file"):
        await builder.root(f'FROM ../base\nSHELL ["/usr/bin/env", "python3", "-c"]\nRUN <<END\n{filler}END\n')
    listed = json.dumps(["/bin/sh", "-c", filler])
    with pytest.raises(ImageBuildFailed):
        await builder.root(f"FROM ../base\nRUN {listed}\n")
    assert "an argument or a variable may have 128 KiB" in builder.output


async def test_no_copy_leads_out_of_the_context_or_the_image(builder: Builder, open_folder: Path) -> None:
    outside = open_folder / "outside"
    outside.mkdir(mode=0o777)
    (outside / "secret").write_text("secret")
    (builder.context / "link").symlink_to(outside / "secret")
    for name in ("link", "../outside/secret", str(outside / "secret")):
        with pytest.raises(ImageBuildFailed, match="Dockerfile:2: the context has no"):
            await builder.build(f"FROM ../base\nCOPY {name} /\n")
    builder.write({"file": "1"})
    root = await builder.root(
        f"FROM ../base\nRUN ln -s {outside} /way && ln -s / /up\nCOPY file /way/\nWORKDIR /up/made\n"
    )
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (root / str(outside / "file").lstrip("/")).read_text() == "1", "the link holds inside the image"
    assert (root / "made").is_dir()
    etc = open_folder / "etc"
    etc.mkdir(mode=0o777)
    await builder.build(f"FROM ../base\nRUN rm -r /etc && ln -s {etc} /etc\nRUN true\n")
    assert os.listdir(etc) == [], "the name service of a RUN is not written through the link"


async def test_files_that_a_dockerignore_names_stay_outside(builder: Builder) -> None:
    builder.write(
        {
            "a.txt": "",
            "b.log": "",
            "logs/c.log": "",
            "logs/keep.log": "",
            "sub/.git/x": "",
            "sub/d": "",
            "node_modules/e": "",
        }
    )
    builder.write({".dockerignore": "# logs\n*.log\n**/.git\nlogs\n!logs/keep.log\nnode_modules/\nDockerfile\n"})
    root = await builder.root("FROM scratch\nCOPY . /all\n")
    found = sorted(str(path.relative_to(root / "all")) for path in (root / "all").rglob("*") if path.is_file())
    assert found == [".dockerignore", "a.txt", "logs/keep.log", "sub/d"]
    with pytest.raises(ImageBuildFailed, match=r"dockerignore leaves b\.log out"):
        await builder.build("FROM scratch\nCOPY b.log /\n")


async def test_a_registry_takes_the_image_and_a_node_pulls_it(builder: Builder) -> None:
    layout = builder.folder / "layout"
    image = await builder.build(
        "FROM ../base\nENV A=b\nRUN echo x > /file && rm /bin/ls\n", outputs=[f"oci:{layout}:v1"]
    )
    (named,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    assert (named["digest"], named["annotations"]["org.opencontainers.image.ref.name"]) == (image, "v1")
    data = {path.name: path.read_bytes() for path in (layout / "blobs/sha256").iterdir()}
    assert all(digest(content) == f"sha256:{name}" for name, content in data.items())
    with running_registry(builder.folder) as host:
        pusher = Pusher(host)
        manifest = json.loads(data[image.removeprefix("sha256:")])
        for blob in (manifest["config"], *manifest["layers"]):
            pusher.blob("built", data[blob["digest"].removeprefix("sha256:")])
        pusher.manifest("built", "v1", manifest)
        cache = ImageCache(builder.folder / "other-cache")
        with await cache.get(parse_image(f"docker://{host}/built:v1")) as local:
            assert place(local, "file").read_text() == "x\n"
            assert not place(local, "bin/ls").is_symlink()
            assert local.config.env == {"A": "b"}
        root = await builder.root(f"FROM {host}/built:v1\nRUN echo y >> file\n")
        assert (root / "file").read_text() == "x\ny\n"


async def test_a_killed_build_leaves_no_process_and_only_its_cache(
    builder: Builder, runtime: str, left_over: Callable[[], list[str]]
) -> None:
    mark = f"{os.getpid()}.{os.urandom(3).hex()}"
    (builder.context / "Dockerfile").write_text(
        f"FROM ../base\nRUN echo first > /first\nRUN echo begun; (sleep 300 & sleep 300); echo {mark}\n"
    )
    environment = {**os.environ, "ROLLYARD_CACHE": str(builder.cache)}
    command = [sys.executable, "-m", "rollyard.cli.main", "images", "build", str(builder.context), "--runtime", runtime]
    command += ["--allow-folder", str(builder.folder / "base")]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while (line := await process.stderr.readline()) != b"begun\n":
        assert line, "the build ended"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with asyncio.timeout(60):
        while _processes_with(mark):
            await asyncio.sleep(0.05)
    assert left_over() != []
    await builder.build(f"FROM ../base\nRUN echo first > /first\nRUN echo {mark}\n", runtime=runtime)
    assert builder.done == [f"RUN echo {mark}"], "what was done before stays done"
    assert left_over() == []


def _processes_with(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in process.read_bytes():
                found.append(process.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run as an ordinary user here")
async def test_an_ordinary_user_builds(builder: Builder, open_folder: Path) -> None:
    user = pwd.getpwnam("daemon")
    own = open_folder / "of-the-user"
    own.mkdir()
    os.chown(own, user.pw_uid, user.pw_gid)
    builder.write({"file": "text\n"})
    (builder.context / "Dockerfile").write_text(
        "FROM ../base\nRUN mkdir /private && touch /private/file && chown -R 5:5 /private && chmod 000 /private/file /private\n"
        "COPY file /private/\nRUN cat /private/file > /copied && id -u >> /copied\n"
    )
    python, modules = open_python()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(own), "ROLLYARD_CACHE": str(own / "cache"), "PYTHONPATH": modules,
        "APPTAINER_CONFIGDIR": str(own / "apptainer"), "ROLLYARD_APPTAINER": _apptainer(), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    for runtime in ("bubblewrap", *(["apptainer"] if _apptainer() else [])):
        command = [
            "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", python, "-m",
            "rollyard.cli.main", "images", "build", str(builder.context), "--output", str(own / runtime),
            "--runtime", runtime, "--no-cache", "--allow-folder", str(builder.folder / "base"),
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd="/"
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert (own / runtime / "copied").read_text() == "text\n0\n"
        assert (own / runtime / "copied").stat().st_uid == user.pw_uid
        assert os.listdir(own / "cache/image-builds/work") == []


def _apptainer() -> str:
    runtime = find_runtime("auto")
    return str(runtime.program) if runtime.name == "apptainer" else ""  # type: ignore[attr-defined]

"""Apptainer's definition files: how they are read, and what is in the images. One of them is also built by Apptainer."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import ImageBuildFailed
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.image_builds.definition_file import parse_definition
from tests.image_builds.conftest import Builder

FILES = {"tree/sub/s": "s\n", "f.txt": "f\n", "1.log": "1\n", "2.log": "2\n"}

WHOLE = """\
# a comment
Bootstrap: localimage
From: ../base   # with a comment
Stage: one

%arguments
    WHO=world
    AT=/data

%files
    # source and place
    f.txt {{ AT }}/
    "f.txt" "/data/with space"
    *.log /logs/
    tree /data
    tree
    f.txt

%post
    echo "hello {{WHO}}" > /hello
    echo "export NOW='late' A=late" >> $APPTAINER_ENVIRONMENT
    pwd > /where; echo $- > /flags
%post
    ls /tree/sub >> /where

%environment
    export A=early B="$NOTHING b"
    C=unexported
    export D="$(cat /hello)" PATH=/more:$PATH

%labels
    Author Some Body

%runscript
    echo run

%test
    echo x > /written-by-test 2> /dev/null || true
    test "$D" = "hello world"
    test $A = late

bootstrap: localimage
from: ../base

%files from one
    /hello
    /data /copied
    /data /copied
%post -c /bin/ash
    ls /copied > /listed
"""


async def define(builder: Builder, text: str, **options: Any) -> str:
    (builder.context / "x.def").write_text(text)
    return await builder.build("", file=builder.context / "x.def", **options)


async def define_root(builder: Builder, text: str, **options: Any) -> Path:
    (builder.context / "x.def").write_text(text)
    return await builder.root("", file=builder.context / "x.def", **options)


def content(root: Path) -> dict[str, str]:
    """Return the files below a root, without those of the base and of Apptainer."""
    own = (".", "bin", "etc", "environment", "singularity")
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith(own)}


async def test_a_definition_file_becomes_the_image_that_apptainer_makes(builder: Builder) -> None:
    builder.write(FILES)
    one = await define_root(builder, WHOLE, network="none", target="one")
    assert content(one) == {
        "data/f.txt": "f\n",
        "data/with space": "f\n",
        "data/tree/sub/s": "s\n",
        "logs/1.log": "1\n",
        "logs/2.log": "2\n",
        "tree/sub/s": "s\n",
        "f.txt": "f\n",
        "hello": "hello world\n",
        "where": "/\ns\n",
        "flags": "xe\n",
    }
    env = json.loads((one / ".rollyard-image.json").read_text())["env"]
    path = "/more:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert env == {"A": "late", "B": " b", "D": "hello world", "NOW": "late", "PATH": path}
    assert "    %runscript has no effect: sandboxes start no program of the image" in builder.said
    last = await define_root(builder, WHOLE, network="none")
    did = [line.partition(" ")[0] for line in builder.done]
    assert did == ["%files", "LABEL", "%runscript", "%files", "%files", "%post"], "the first stage is in the cache"
    assert content(last) == {
        "hello": "hello world\n",
        "copied/f.txt": "f\n",
        "copied/with space": "f\n",
        "copied/tree/sub/s": "s\n",
        "copied/data/f.txt": "f\n",
        "copied/data/with space": "f\n",
        "copied/data/tree/sub/s": "s\n",
        "listed": "data\nf.txt\ntree\nwith space\n",
    }
    if apptainer_programs(node_cache()):
        first, *_ = WHOLE.partition("bootstrap:")
        assert by_apptainer(builder, "one", first) == content(one)
        assert by_apptainer(builder, "last", WHOLE) == content(last)


def by_apptainer(builder: Builder, name: str, text: str) -> dict[str, str]:
    """Return the files that Apptainer makes. As root it asks for capabilities that root of a container may lack."""
    (_, program), *_ = apptainer_programs(node_cache())
    home, base = builder.folder / name, builder.folder / "base"
    home.mkdir()
    account: list[str] = []
    if os.geteuid() == 0:
        account = ["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups"]
        daemon = pwd.getpwnam("daemon")
        for path in (home, base, *base.rglob("*")):
            os.chown(path, daemon.pw_uid, daemon.pw_gid, follow_symlinks=False)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "APPTAINER_CONFIGDIR": str(home),
        "APPTAINER_TMPDIR": str(home),
    }
    (builder.context / "x.def").write_text(text)
    command: list[str] = [
        str(program),
        "build",
        "--fakeroot",
        "--ignore-fakeroot-command",
        "--sandbox",
        str(home / "image"),
        "x.def",
    ]
    done = subprocess.run(
        [*account, *command], env=env, cwd=builder.context, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return content(home / "image")


async def test_a_failed_test_and_a_failed_script_name_their_lines(builder: Builder) -> None:
    with pytest.raises(ImageBuildFailed, match=r"^x\.def:4: %test .* ended with exit status 1"):
        await define(builder, "Bootstrap: localimage\nFrom: ../base\n\n%test\n    echo no; false\n")
    assert "no\n" in builder.output
    with pytest.raises(ImageBuildFailed, match=r"^x\.def:3: %post false ended with exit status 1"):
        await define(builder, "Bootstrap: localimage\nFrom: ../base\n%post\nfalse\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"x\.def:1: it has no Bootstrap: begin with"),
        ("FROM debian:12\n", r"x\.def:1: FROM stands before the first Bootstrap"),
        ("Bootstrap: library\nFrom: a/b\n", r"x\.def:1: Bootstrap: library is not supported .*apptainer pull"),
        ("Bootstrap: docker\n\n%post\n", r"x\.def:1: Bootstrap: docker needs an image: write From: IMAGE"),
        ("Bootstrap: docker\nFrom: a\nFurm: b\n", r"x\.def:3: the header has no furm: write Bootstrap, From"),
        ("Bootstrap: docker\nFrom: a\necho\n", r"x\.def:3: 'echo' is not KEY: VALUE; sections begin with %"),
        ("Bootstrap: docker\nFrom: a\nFingerprints: 1\n", r"x\.def:3: signatures are not verified here"),
        ("Bootstrap: docker\nFrom: a\n%past\n", r"x\.def:3: there is no section %past here: write %arguments"),
        ("Bootstrap: docker\nFrom: a\n\n%setup\n", r"x\.def:4: %setup is not supported: .*%files"),
        ("Bootstrap: docker\nFrom: a\n%post\n\necho {{ V }}\n", r"x\.def:5: {{ V }} has no value: add --build-arg V="),
        ("Bootstrap: docker\nFrom: a\n%files from b\n", r"x\.def:3: there is no stage 'b' before this one: name one"),
        ("Bootstrap: docker\nFrom: a\n%post -c\n x\n", r"x\.def:3: %post -c is not supported: write %post, or"),
        ("Bootstrap: docker\nFrom: a\n%arguments\n x\n", r"x\.def:4: 'x' is not NAME=DEFAULT"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ImageBuildFailed, match=said):
        parse_definition(text, "x.def", {})


def test_images_are_named_as_from_names_them() -> None:
    def base(text: str) -> str:
        return parse_definition(text, "x.def", {"V": "12"}).stages[0].base

    assert base("Bootstrap: docker\nFrom: debian:{{ V }}\n") == "docker://debian:12"
    assert base("Bootstrap: docker\nRegistry: a.example\nNamespace: b\nFrom: c:1\n") == "docker://a.example/b/c:1"
    assert base("BootStrap: localimage\nFrom: a.sif\n") == "./a.sif"
    assert base("Bootstrap: oci-archive\nFrom: /a/b.tar:v1\n") == "oci-archive:/a/b.tar:v1"
    assert base("Bootstrap: scratch\n") == "scratch"


async def test_files_outside_of_the_folder_need_a_permission(builder: Builder) -> None:
    text = "Bootstrap: scratch\n%files\n    {} /x\n"
    (builder.folder / "secret").write_text("secret")
    for name in ("../secret", str(builder.folder / "secret")):
        with pytest.raises(ImageBuildFailed, match=r"x\.def:3: .*secret is outside of .* add --allow-folder"):
            await define(builder, text.format(name))
        root = await define_root(builder, text.format(name), folders=[builder.folder])
        assert (root / "x").read_text() == "secret"
    with pytest.raises(ImageBuildFailed, match=r"x\.def:3: the folder .* has no nothing"):
        await define(builder, text.format("nothing"))

"""Built images under a name: on this machine, and in the folder that all nodes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollyard.cli.image_build import build
from rollyard.cli.main import cli
from rollyard.core.errors import ImageUnavailable
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import normal_form, parse_image
from tests.image_builds.conftest import Builder
from tests.support.image_files import place


def made(builder: Builder, text: str, *words: str) -> str:
    """Build an image with a file that has this text. Return what the command said."""
    builder.write({"Dockerfile": f"FROM scratch\nCOPY <<END /usr/number\n{text}\nEND\n"})
    command = [sys.executable, "-m", "rollyard.cli.main", "images", "build", str(builder.context), *words]
    env = {**os.environ, "ROLLYARD_CACHE": str(builder.cache), "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr


async def number(cache: ImageCache, name: str) -> str:
    with await cache.get(parse_image(name)) as image:
        return place(image, "usr/number").read_text()


async def test_a_tagged_image_is_found_by_its_name(builder: Builder, open_folder: Path) -> None:
    shared = open_folder / "shared"
    shared.mkdir()
    own = ImageCache(builder.cache / "image-cache", CacheSettings())
    node = ImageCache(open_folder / "node", CacheSettings(shared_folder=str(shared)))
    assert "pools and tasks name it built:numbers:latest" in made(builder, "1", "--tag", "numbers")
    assert await number(own, "built:numbers") == "1\n"
    with pytest.raises(
        ImageUnavailable, match=r"the image built:numbers:latest cannot be .*images build --tag numbers"
    ) as caught:
        await number(node, "built:numbers")
    assert caught.value.permanent
    made(builder, "2", "--tag", "numbers", "--shared", str(shared))
    assert await number(node, "built:numbers:latest") == "2\n"
    assert await number(own, "built:numbers") == "1\n"
    made(builder, "3", "--tag", "numbers")
    assert await number(own, "built:numbers") == "3\n", "a newer image replaces an older one"
    assert own.has(parse_image("built:numbers:latest"))
    assert sorted(os.listdir(shared / "built/images/numbers")) == ["latest.json", "latest.used"]
    with pytest.raises(ImageUnavailable, match=r"is here, only built:numbers:latest: `rollyard images build --tag n"):
        await number(node, "built:numbers:v1")


async def test_the_list_says_which_image_is_of_an_older_build(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_CACHE", str(builder.cache))

    def listed() -> list[str]:
        lines = CliRunner().invoke(cli, ["images", "list"]).output.splitlines()[1:]
        return [line.split("   ")[0] for line in lines if " built " not in line]

    made(builder, "1", "--tag", "numbers")
    assert listed() == []
    assert await number(ImageCache(builder.cache / "image-cache"), "built:numbers") == "1\n"
    assert listed() == ["built:numbers:latest"]
    made(builder, "2", "--tag", "numbers")
    assert listed() == ["built:numbers:latest (older build)"]


def test_a_wrong_tag_is_refused_with_what_one_can_write() -> None:
    for words, said in (
        (("--tag", "../up"), "is not a name of a built image: write NAME or NAME:TAG"),
        (("--tag", "a:b:c"), "is not a name of a built image"),
        (("--shared", "/"), "--shared needs --tag NAME"),
        (("--tag", "a", "--shared", "/nowhere"), "Directory '/nowhere' does not exist"),
    ):
        done = CliRunner().invoke(build, ["/nowhere", *words])
        assert done.exit_code == 2
        assert said in " ".join(done.output.split()), done.output


def test_the_names_of_built_images() -> None:
    assert (
        normal_form("built:a/b")
        == normal_form("built:a/b", "/c")
        == parse_image("built:a/b").text
        == "built:a/b:latest"
    )
    with pytest.raises(ValueError, match="is not a name of a built image"):
        parse_image("built:/etc")

"""Errors of a FROM, each with its line and what one can do."""

from __future__ import annotations

import pytest

from rollyard.core.errors import ImageBuildFailed
from rollyard.images import registry_client
from tests.image_builds.conftest import Builder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM ./missing\n", r"^Dockerfile:1: there is no folder .*/context/missing: name a folder with a root"),
        ("\nFROM ./a.sif\n", r"^Dockerfile:2: the image .*/a\.sif cannot be used now: there is no file .*: make it"),
        ("FROM /etc\n", r"^Dockerfile:1: /etc is outside of the context, .* add --allow-folder /etc"),
        ("FROM ../base AS one\nFROM oci:/no\n", r"^Dockerfile:2: .* no OCI layout .*; the earlier stages are one"),
        (
            "FROM x:1\n",
            r"^Dockerfile:1: the image docker:.*x:1 cannot .*; without this registry, name .* archive .*mmdebstrap",
        ),
        ("FROM 127.0.0.1:1/x:1\n", r"^Dockerfile:1: .* does not answer properly"),
        ("FROM a b\n", r"^Dockerfile:1: write FROM IMAGE or FROM IMAGE AS NAME"),
        ("FROM $NOTHING\n", r"^Dockerfile:1: '' is neither an earlier stage nor the name of an image"),
        ("FROM ./x.def\n", r"^Dockerfile:1: .*x\.def is a recipe: build the image once with `rollyard images build"),
        (
            "FROM built:none\n",
            r"^Dockerfile:1: the image built:none:latest .*`rollyard images build --tag none:latest`",
        ),
    ],
)
async def test_an_image_that_cannot_be_had_is_named_with_its_line(
    builder: Builder, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")  # Docker Hub is out of reach
    with pytest.raises(ImageBuildFailed, match=said):
        await builder.build(text)

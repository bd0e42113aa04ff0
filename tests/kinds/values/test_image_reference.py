"""Names of images: each form, its normal form, and the sentences for names that can never work."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from rollyard.kinds.values.image_reference import (
    ImageName,
    LayoutImage,
    PathImage,
    RegistryImage,
    normal_form,
    parse_image,
)
from rollyard.kinds.values.paths import make_absolute

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("docker://ubuntu", RegistryImage("docker.io", "library/ubuntu", "latest", None)),
        ("docker://ubuntu:24.04", RegistryImage("docker.io", "library/ubuntu", "24.04", None)),
        ("docker://index.docker.io/a/b", RegistryImage("docker.io", "a/b", "latest", None)),
        ("docker://a/b", RegistryImage("docker.io", "a/b", "latest", None)),
        ("docker://localhost/b", RegistryImage("localhost", "b", "latest", None)),
        ("docker://R.example:5000/a/b:c", RegistryImage("r.example:5000", "a/b", "c", None)),
        ("docker://[::1]:5000/b", RegistryImage("[::1]:5000", "b", "latest", None)),
        (f"docker://r.example/b@{DIGEST}", RegistryImage("r.example", "b", None, DIGEST)),
        (f"docker://r.example/b:c@{DIGEST}", RegistryImage("r.example", "b", "c", DIGEST)),
        ("oci:/a/layout", LayoutImage("oci", "/a/layout", None)),
        ("oci:/a/layout:v1", LayoutImage("oci", "/a/layout", "v1")),
        ("oci:/a:b/layout", LayoutImage("oci", "/a:b/layout", None)),
        ("oci-archive:/a/x.tar:v1", LayoutImage("oci-archive", "/a/x.tar", "v1")),
        ("docker-archive:/a/x.tar:b/c:v1", LayoutImage("docker-archive", "/a/x.tar", "b/c:v1")),
        ("/a/x.sif", PathImage("/a/x.sif", "sif")),
        ("/a/x.squashfs", PathImage("/a/x.squashfs", "squashfs")),
        ("/a/x.def", PathImage("/a/x.def", "def")),
        ("/a/Dockerfile", PathImage("/a/Dockerfile", "dockerfile")),
        ("/a/Dockerfile.test", PathImage("/a/Dockerfile.test", "dockerfile")),
        ("/a/root/", PathImage("/a/root", "folder")),
        ("images/x.sif", PathImage("images/x.sif", "sif")),
    ],
)
def test_parse(text: str, reference: object) -> None:
    assert parse_image(text) == reference
    assert parse_image(parse_image(text).text) == reference


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not the name of an image"),
        (" /a", "not the name of an image"),
        ("/a\n", "not the name of an image"),
        ("x" * 2000, "not the name of an image"),
        ("ubuntu:24.04", "write docker://"),
        ("library://a/b", "not supported"),
        ("https://r.example/x", "not supported"),
        ("docker://", "no valid repository"),
        ("docker://r.example/UPPER", "no valid repository"),
        ("docker://r.example/a:", "no valid tag"),
        ("docker://r.example/a@sha256:12", "no valid digest"),
        ("docker://-.x/a", "no valid host"),
        ("docker://user:pass@r.example/a", "no valid digest"),
        ("oci:", "names no path"),
        ("oci:/a:", "ends with a colon"),
    ],
)
def test_a_name_that_can_never_work_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_image(text)


def test_a_model_keeps_the_normal_form_and_refuses_relative_paths() -> None:
    names = TypeAdapter(ImageName)
    assert names.validate_python("docker://ubuntu") == "docker://docker.io/library/ubuntu:latest"
    with pytest.raises(ValidationError, match="absolute path"):
        names.validate_python("x.sif")
    with pytest.raises(ValidationError, match="absolute path"):
        names.validate_python("oci:layout")


def test_relative_paths_of_a_manifest_become_absolute() -> None:
    assert normal_form("oci:../layout:v1", "/a/b") == "oci:/a/layout:v1"
    spec = {"spec": {"sandbox": {"defaultImage": "docker://ubuntu", "images": {"sharedFolder": "tier"}}}}
    make_absolute(spec, "/a")
    assert spec["spec"]["sandbox"] == {
        "defaultImage": "docker://docker.io/library/ubuntu:latest",
        "images": {"sharedFolder": "/a/tier"},
    }
    spec = {"spec": {"sandbox": {"defaultImage": "x.sif"}}}
    make_absolute(spec, "/a")
    assert spec["spec"]["sandbox"]["defaultImage"] == "/a/x.sif"

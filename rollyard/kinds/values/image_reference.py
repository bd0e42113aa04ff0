"""Names of sandbox images: an image of a registry, a layout or archive, or a file or folder. Pure: nothing is looked up.

A process parses a name once, where the name comes in. From there on it passes the `ImageReference`.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

FORMS = (
    "write docker://HOST/REPOSITORY:TAG, built:NAME, oci:/LAYOUT:TAG, oci-archive:/FILE.tar, docker-archive:/FILE.tar, or "
    "the path of a .sif or .squashfs file, or of a folder with a root file system"
)
DOCKER_HUB = "docker.io"
_MOST = 1024
"""Greatest length of a name in characters."""
# The grammar of the OCI distribution specification, and of the program docker for hosts.
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SCHEME = re.compile(r"[A-Za-z0-9+._-]+:")

LayoutKind = Literal["oci", "oci-archive", "docker-archive"]
PathKind = Literal["folder", "sif", "squashfs", "def", "dockerfile"]


@dataclass(frozen=True)
class RegistryImage:
    """An image of a registry. It has a tag, a digest or both; the digest decides."""

    host: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def text(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"docker://{self.host}/{self.repository}{tag}{digest}"


@dataclass(frozen=True)
class LayoutImage:
    """An image of an OCI layout (a folder), an OCI archive or an archive of `docker save` (tar files)."""

    kind: LayoutKind
    path: str
    tag: str | None

    @property
    def text(self) -> str:
        return f"{self.kind}:{self.path}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True)
class PathImage:
    """A file or folder. The end of its name shows its kind."""

    path: str
    kind: PathKind

    @property
    def text(self) -> str:
        return self.path


@dataclass(frozen=True)
class BuiltImage:
    """An image that `rollyard images build --tag` has written for this machine, or into the shared folder."""

    name: str
    tag: str

    @property
    def text(self) -> str:
        return f"built:{self.name}:{self.tag}"

    def manifest(self, folder: str) -> str:
        """Return the path of its manifest in the node's cache of images, or in the shared folder."""
        return os.path.join(folder, "built", "images", self.name, f"{self.tag}.json")


ImageReference = RegistryImage | BuiltImage | LayoutImage | PathImage


def parse_image(text: str) -> ImageReference:
    """Return the parts of an image's name. Raises ValueError, with a sentence, for a name that can never work."""
    if not text or len(text) > _MOST or not text.isprintable() or text != text.strip():
        raise ValueError(f"{text[:80]!r} is not the name of an image: {FORMS}")
    if text.startswith("docker://"):
        return _registry_image(text)
    if text.startswith("built:"):
        return built_image(text.removeprefix("built:"))
    for kind in get_args(LayoutKind):
        if text.startswith(f"{kind}:"):
            return _layout_image(kind, text)
    if _SCHEME.match(text):  # library://, docker-daemon:, or docker's own short form such as ubuntu:24.04
        raise ValueError(f"{text!r} has a form that is not supported: {FORMS}")
    return PathImage(os.path.normpath(text), _path_kind(text))


def built_image(text: str) -> BuiltImage:
    """Return the parts of NAME or NAME:TAG. Raises ValueError."""
    name, colon, tag = text.partition(":")
    if not _REPOSITORY.fullmatch(name) or (colon and not _TAG.fullmatch(tag)):
        raise ValueError(
            f"{text[:80]!r} is not a name of a built image: write NAME or NAME:TAG in lower-case letters and digits"
        )
    return BuiltImage(name, tag or "latest")


def _registry_image(text: str) -> RegistryImage:
    rest, at, digest = text.removeprefix("docker://").partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{text!r} has no valid digest after the @: write sha256: and 64 hexadecimal digits")
    above, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"{text!r} has no valid tag after the last colon: {FORMS}")
    first, cut, below = f"{above}{slash}{last}".partition("/")
    if cut and ("." in first or ":" in first or first == "localhost"):
        host, repository = first, below
    else:
        host, repository = DOCKER_HUB, f"{first}{cut}{below}"
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = DOCKER_HUB
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r} has no valid host: {FORMS}")
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"{text!r} has no valid repository (lower-case letters, digits, '.', '_', '-', '/'): {FORMS}")
    return RegistryImage(host.lower(), repository, tag or (None if digest else "latest"), digest or None)


def _layout_image(kind: LayoutKind, text: str) -> LayoutImage:
    rest = text.removeprefix(f"{kind}:")
    if kind == "docker-archive":  # the tag is a name with a tag, such as a/b:v1
        path, colon, tag = rest.partition(":")
    else:
        above, slash, last = rest.rpartition("/")
        last, colon, tag = last.partition(":")
        path = f"{above}{slash}{last}"
    if not path or rest.startswith("//"):
        raise ValueError(f"{text!r} names no path: write {kind}:/PATH or {kind}:/PATH:TAG")
    if colon and not tag:
        raise ValueError(f"{text!r} ends with a colon: add a tag, or leave out the colon")
    return LayoutImage(kind, os.path.normpath(path), tag or None)


def _path_kind(path: str) -> PathKind:
    name = os.path.basename(os.path.normpath(path))
    if name.endswith(".sif"):
        return "sif"
    if name.endswith((".squashfs", ".sqfs")):
        return "squashfs"
    if name.endswith(".def"):
        return "def"
    if name == "Dockerfile" or name.startswith("Dockerfile.") or name.endswith(".Dockerfile"):
        return "dockerfile"
    return "folder"


def below(base: str, image: ImageReference) -> ImageReference:
    """Return the image with an absolute path; a relative one is below the folder `base`."""
    if isinstance(image, RegistryImage | BuiltImage):
        return image
    return replace(image, path=os.path.normpath(os.path.join(base, image.path)))


def normal_form(text: str, base: str = "") -> str:
    """Return the normal form of a name, with its path below the folder `base` unless the path is absolute. Return a name
    that cannot be parsed as it is."""
    try:
        return below(base, parse_image(text)).text
    except ValueError:
        return text


def registry_host(name: str) -> str | None:
    """Return the host of the registry in a name in normal form; None if the image is of no registry."""
    return name.removeprefix("docker://").partition("/")[0] if name.startswith("docker://") else None


def _check(text: str) -> str:
    reference = parse_image(text)
    if not isinstance(reference, RegistryImage | BuiltImage) and not os.path.isabs(reference.path):
        raise ValueError(
            "write an absolute path on the allocation's node (a YAML file may use a path relative to the file)"
        )
    return reference.text


ImageName = Annotated[str, AfterValidator(_check)]
"""The name of an image in normal form; a path is absolute."""

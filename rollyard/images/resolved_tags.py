"""Remembers which digest a name meant, so that a registry is asked for each tag once in a while, and for a digest once. A
file is read again when it has changed."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.regular_file import open_regular
from rollyard.images.oci_manifest import platform_key
from rollyard.images.whole_file import write_whole
from rollyard.kinds.values.image_reference import RegistryImage

TAG_SECONDS = 300.0
"""Seconds after which a moved tag is seen."""
_MOST_BYTES = 64 << 10


@dataclass(frozen=True)
class Resolved:
    image: str
    digest: str
    """Digest of the manifest for this machine."""
    at: float
    """Time of the registry's answer, in seconds since the epoch."""
    identity: str = ""
    """For a file of this machine: size, times and inode of the file that gave this digest."""

    def fresh(self, reference: RegistryImage) -> bool:
        return reference.digest is not None or 0 <= time.time() - self.at < TAG_SECONDS


class ResolvedTags:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, image: str) -> Resolved | None:
        return _read(self.path(image))

    def keep(self, image: str, digest: str, *, seconds: float = TAG_SECONDS, identity: str = "") -> None:
        """Store the digest. It is looked up again after `seconds`."""
        at = time.time() - TAG_SECONDS + seconds
        kept = {"image": image, "digest": digest, "at": at, "identity": identity}
        write_whole(self.path(image), json.dumps(kept).encode())

    def forget(self, image: str) -> None:
        """Look the name up at its next use."""
        self.path(image).unlink(missing_ok=True)

    def all(self) -> list[Resolved]:
        found = (_read(path) for path in self._folder.glob(f"*.{platform_key()}.json"))
        return [one for one in found if one is not None]

    def path(self, image: str) -> Path:
        return self._folder / f"{hashlib.sha256(image.encode()).hexdigest()[:32]}.{platform_key()}.json"


def _read(path: Path) -> Resolved | None:
    try:
        with open_regular(path) as file:  # in a shared folder others write too
            data = json.loads(file.read(_MOST_BYTES))
        return Resolved(data["image"], data["digest"], data["at"], data.get("identity", ""))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

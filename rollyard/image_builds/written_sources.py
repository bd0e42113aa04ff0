"""Sources of COPY and ADD that are not files of the context: texts, and files of other servers."""

from __future__ import annotations

import os
import posixpath
import urllib.parse
import urllib.request
from pathlib import Path

from rollyard.image_builds.copied_files import CopySource, NoSuchFile

_DOWNLOAD_SECONDS = 60.0


def text_source(path: Path, name: str, text: str) -> CopySource:
    """Write a text to the new file `path`. In the image its name is `name`."""
    path.write_text(text)
    path.chmod(0o644)
    return CopySource(name, False, (("", os.fspath(path)),))


def download(path: Path, url: str) -> CopySource:
    """Load a file to `path`. Raises NoSuchFile."""
    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS) as answer, open(path, "wb") as file:
            while data := answer.read(1 << 20):
                file.write(data)
    except (OSError, ValueError) as error:
        raise NoSuchFile(f"{url} cannot be had: {error}") from None
    path.chmod(0o600)
    name = posixpath.basename(urllib.parse.urlsplit(url).path)
    return CopySource(name or "index.html", False, (("", os.fspath(path)),))

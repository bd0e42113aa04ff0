"""Parses the name of an image where it enters a process that uses the image."""

from __future__ import annotations

import os
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.kinds.values.image_reference import ImageReference, below, parse_image


def named_image(name: str, folder: Path | None = None) -> ImageReference:
    """Return the image with an absolute path; a relative one is below `folder`, by default the working directory. Raises
    ImageNotFound, with a sentence that says what one can write, for a name that can never work."""
    try:
        return below(os.fspath(folder or Path.cwd()), parse_image(name))
    except ValueError as error:
        raise ImageNotFound(str(error)) from None

"""The configuration of an image that is a folder: a file in the folder, which `rollyard images build` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rollyard.host.removed_folder import remove_folder
from rollyard.images.base import ImageConfig

CONFIG_FILE = ".rollyard-image.json"
_MOST_BYTES = 8 << 20


class BadFolderConfig(Exception):
    """`str()` is a sentence."""


def read_folder_config(root: Path) -> ImageConfig:
    """Return the configuration; an empty one if the folder has none. Raises BadFolderConfig if it cannot be read."""
    try:
        with open(os.open(root / CONFIG_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            config = ImageConfig.from_json(json.loads(file.read(_MOST_BYTES)))
        if config.fault is not None:
            raise ValueError(config.fault)
        return config
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFolderConfig(
            f"{root / CONFIG_FILE} cannot be read ({error}): delete it, or build the image again"
        ) from None


def write_folder_config(root: Path, config: ImageConfig) -> None:
    """Write the configuration in place of any that the image has brought. No symbolic link is followed."""
    file = root / CONFIG_FILE
    if file.is_dir() and not file.is_symlink():
        remove_folder(file)
    else:
        file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as writer:
        os.fchmod(writer.fileno(), 0o644)
        writer.write(json.dumps(config.to_json()))

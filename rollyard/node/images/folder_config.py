"""The configuration of an image that is a folder: a file in the folder, which `rollyard images build` writes."""

from __future__ import annotations

import json
from pathlib import Path

from rollyard.core.errors import ImageNotFound
from rollyard.node.images.base import ImageConfig

CONFIG_FILE = ".rollyard-image.json"


def read_folder_config(root: Path) -> ImageConfig:
    """Return the configuration; an empty one if the folder has none. Raises ImageNotFound if it cannot be read."""
    try:
        return ImageConfig.from_json(json.loads((root / CONFIG_FILE).read_bytes()))
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageNotFound(
            f"{root / CONFIG_FILE} cannot be read ({error}): delete it, or build the image again"
        ) from None


def write_folder_config(root: Path, config: ImageConfig) -> None:
    file = root / CONFIG_FILE
    file.write_text(json.dumps(config.to_json()))
    file.chmod(0o644)

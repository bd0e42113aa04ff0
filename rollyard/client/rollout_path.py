"""The path of a rollout on the server."""

from __future__ import annotations

import re

from rollyard.core.errors import NotFound
from rollyard.kinds.rollout import ID_PATTERN


def rollout_path(id: str) -> str:
    """Return the path. Raises NotFound if no rollout can have this id: it would name another path of the server."""
    if not re.fullmatch(ID_PATTERN, id):
        raise NotFound(
            f"there is no rollout {id!r}: an id has letters, digits and . _ : -, and begins with a letter or a digit"
        )
    return f"/v1/rollouts/{id}"

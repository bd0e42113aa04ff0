"""`endpoint.json`: the server's current address.

The epoch in the file grows with each start of a server. A server cannot overwrite the file of a newer server.
"""

from __future__ import annotations

from pathlib import Path

from rollyard.core.errors import Conflict
from rollyard.trust.secret_files import write_secret
from rollyard.wire.files import EndpointFile


def read_endpoint(path: Path) -> EndpointFile | None:
    """Read the file; return None if it is missing or cannot be parsed. Blocks."""
    try:
        return EndpointFile.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_endpoint(path: Path, endpoint: EndpointFile) -> None:
    """Write the file. Raises Conflict if a newer server has written the present file."""
    there = read_endpoint(path)
    if there is not None and there.epoch > endpoint.epoch:
        raise Conflict(
            f"{path} belongs to a newer server (epoch {there.epoch}, this one has {endpoint.epoch}); stop this server"
        )
    write_secret(path, endpoint.model_dump_json())

"""Credentials of private registries, from a file in the format of docker's config.json.

They appear in no log and in no error.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from pathlib import Path
from typing import Any

from rollyard.kinds.values.image_reference import DOCKER_HUB

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")


class UnusableCredentials(Exception):
    """`str()` is a sentence without any secret."""


def basic_credentials(file: str | None, host: str) -> str | None:
    """Return "USER:PASSWORD" for a registry, encoded as for HTTP's basic authentication; None if the file has none. Raises
    UnusableCredentials."""
    if file is None:
        return None
    entries = _read(Path(file))
    keys = (host, f"https://{host}", f"http://{host}", *(_HUB_KEYS if host == DOCKER_HUB else ()))
    for key in keys:
        found = entries.get(key)
        if isinstance(found, dict):
            return _encoded(file, host, found)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UnusableCredentials(
                    f"others may read the credentials in {path} (mode {mode:04o}): run chmod 600 {path}, and replace the "
                    "passwords if the file was readable for long"
                )
            data = json.load(file)
    except OSError as error:
        raise UnusableCredentials(f"the credentials in {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UnusableCredentials(f"{path} is no JSON file in the format of docker's config.json") from None
    entries = data.get("auths") if isinstance(data, dict) else None
    if not isinstance(entries, dict):
        raise UnusableCredentials(f"{path} has no `auths`: write it in the format of docker's config.json")
    return entries


def _encoded(file: str, host: str, entry: dict[str, Any]) -> str:
    user, password, encoded = entry.get("username"), entry.get("password"), entry.get("auth")
    if isinstance(user, str) and isinstance(password, str):
        return base64.b64encode(f"{user}:{password}".encode()).decode()
    try:
        if isinstance(encoded, str) and b":" in base64.b64decode(encoded, validate=True):
            return encoded
    except (binascii.Error, ValueError):
        pass
    raise UnusableCredentials(
        f"the entry for {host} in {file} has neither `auth` nor `username` and `password` (a helper program for "
        "credentials is not supported)"
    )

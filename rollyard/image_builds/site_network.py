"""Proxies of a site, for a RUN. They are in the container while the command runs, never in the image, and change no key of
the build cache."""

from __future__ import annotations

import os
from collections.abc import Mapping

_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
PROXIES = (*_NAMES, *(name.upper() for name in _NAMES))
"""Variables that a RUN has without an ARG, as in Docker."""


def proxies(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name proxies. `arguments`: those of --build-arg, which come first."""
    return {name: value for name in PROXIES if (value := arguments.get(name, os.environ.get(name))) is not None}

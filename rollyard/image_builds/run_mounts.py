"""The `--mount` flags of a RUN. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_KINDS = ("bind", "cache", "tmpfs")
_TARGETS = ("target", "dst", "destination")
_SOURCES = ("source", "src")


class BadMount(Exception):
    """A mount that cannot be made. `str()` is a sentence."""


@dataclass(frozen=True)
class RunMount:
    kind: str
    """`bind`: files of `source`. `cache`, `tmpfs`: an empty folder."""
    target: str
    source: str = ""
    """Name below the context, or below the root of `stage`."""
    stage: str | None = None
    """Stage or image that has the source."""


def parse_mount(text: str, expand: Callable[[str], str]) -> RunMount:
    """Return what a flag says. Raises BadMount."""
    options = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        options[name.strip().lower()] = expand(value)
    kind = options.get("type", "bind")
    if kind not in _KINDS:
        raise BadMount(
            f"RUN --mount=type={kind} is not supported: write type={', '.join(_KINDS[:-1])} or {_KINDS[-1]}, or COPY the "
            "files that the command needs"
        )
    target = next((options[name] for name in _TARGETS if options.get(name)), None)
    if target is None:
        raise BadMount(f"RUN --mount={text} names no folder: add target=PATH")
    source = next((options[name] for name in _SOURCES if options.get(name)), ".")
    return RunMount(kind, target, source, options.get("from")) if kind == "bind" else RunMount(kind, target)

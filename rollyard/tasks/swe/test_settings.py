"""Settings of test runners in files that also hold other things, such as pyproject.toml. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

SHARED_FILES = ("setup.cfg", "pyproject.toml", "package.json", "Cargo.toml")
"""Names of such files."""
_SECTION = re.compile(r"^\[([^\]\n]*)\].*$", re.MULTILINE)
_RUNNER_SECTION = re.compile(r"pytest|coverage|nosetests|aliases|tox|testenv")
_RUNNER_TOOLS = ("pytest", "coverage", "tox", "nox", "hatch", "pdm", "poe")
_RUNNER_KEYS = ("jest", "vitest", "mocha", "ava", "nyc", "c8", "tap", "scripts", "babel")


def test_settings(name: str, data: bytes) -> object:
    """Return what a file says about running tests, for a comparison; None if files of this name say nothing. Of a file that
    cannot be read it is the whole file."""
    read = {
        "setup.cfg": _of_setup_cfg, "pyproject.toml": _of_pyproject, "package.json": _of_package_json, "Cargo.toml": _of_cargo,
    }.get(name)  # fmt: skip
    if read is None:
        return None
    try:
        return read(data.decode())
    except (ValueError, RecursionError):
        return data


def _of_setup_cfg(text: str) -> object:
    """Return the sections of test runners, and the lines that name plug-ins of pytest."""
    pieces = _SECTION.split(text)
    sections = [
        body.split() for head, body in zip(pieces[1::2], pieces[2::2], strict=True) if _RUNNER_SECTION.search(head)
    ]
    return sections, re.findall(r"^.*pytest11.*$", text, re.MULTILINE)


def _of_pyproject(text: str) -> object:
    found = tomllib.loads(text)
    tools = _table(found, "tool")
    settings = [tools.get(name) for name in _RUNNER_TOOLS]
    plugins = [_table(_table(found, "project"), "entry-points"), _table(_table(tools, "poetry"), "plugins")]
    return settings, [table.get("pytest11") for table in plugins]


def _of_package_json(text: str) -> object:
    found = json.loads(text) if text.strip() else {}
    return [found.get(key) for key in _RUNNER_KEYS] if isinstance(found, dict) else found


def _of_cargo(text: str) -> object:
    found = tomllib.loads(text)
    return [found.get("test"), found.get("bench")]


def _table(found: dict[str, Any], key: str) -> dict[str, Any]:
    inner = found.get(key)
    return inner if isinstance(inner, dict) else {}

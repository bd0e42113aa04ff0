"""Every link of a page leads to something, and every file and module that a page names is there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
PAGES = [name for name in TRACKED if name.endswith(".md")]
FOLDERS = sorted({name.partition("/")[0] for name in TRACKED if "/" in name})

_LINK = re.compile(r"\[[^]\n]+]\((?!https?://)(?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_PLACEHOLDER = re.compile(r"[A-Z]{3,}|[*{}<>…]")
"""Names that a page makes up, such as `FILE.jinja`."""


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = _FENCED.sub("", (ROOT / page).read_text())
    missing = []
    for match in _LINK.finditer(text):
        target = (ROOT / page).parent / match["target"] if match["target"] else ROOT / page
        if not target.exists():
            missing.append(match[0])
        elif match["anchor"] and match["anchor"] not in _anchors(target):
            missing.append(f"{match[0]}: it has {', '.join(_anchors(target))}")
    assert not missing, missing


def _anchors(page: Path) -> list[str]:
    """Names of the headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.M)
    return [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", [name for name in PAGES if not name.startswith("CHANGELOG")])
def test_files_and_modules_that_are_named_are_there(page: str) -> None:
    missing = []
    for span in _SPAN.findall(_FENCED.sub("", (ROOT / page).read_text())):
        for word in span.split():
            name = word.rstrip(".,;:")
            if _PLACEHOLDER.search(name):
                continue
            if not (_is_there(name) if "/" in name or name.endswith(".py") else _can_be_imported(name)):
                missing.append(name)
    assert not missing, f"{page} names {missing}"


def _is_there(name: str) -> bool:
    """A name that begins with a folder of the repository is a path; `guard.py` or
    `tasks/guarded_handler.py` is the end of one."""
    top = name.partition("/")[0]
    if top in FOLDERS and "/" in name:
        return (ROOT / name).exists()
    return not name.endswith(".py") or any(tracked.endswith(f"/{name}") for tracked in TRACKED)


def _can_be_imported(name: str) -> bool:
    """A dotted name below our packages is a module, or what a module has in it."""
    if not re.fullmatch(r"(rollyard|bench|examples|tests)(\.\w+)+", name):
        return True
    if name in (
        "rollyard.tasks",
        "rollyard.task_fields",
        "rollyard.sources",
        "rollyard.tool_parsers",
        "rollyard.db",
        "rollyard.weights",
        "rollyard.dev",
    ):
        return True  # groups of entry points, a file of the data folder, an object of a stream, the API group
    while "." in name:
        try:
            if importlib.util.find_spec(name) is not None:
                return True
        except ModuleNotFoundError:
            pass
        name, _, last = name.rpartition(".")
        if not last[:1].isupper():
            return False
    return False

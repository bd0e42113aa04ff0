"""Eight task folders in the manner of terminal benchmarks, in `harbor_bench`, and the image of their Dockerfiles."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.harbor_folders import HarborFolder
from tests.support.small_roots import add_program, python_root

FOLDERS = Path(__file__).with_name("harbor_bench")
NAMES = sorted(folder.name for folder in FOLDERS.iterdir())
BASE = "FROM debian:12\n"


def bench_root(folder: Path) -> Path:
    """Make the root file system that takes the place of `debian:12`."""
    root = python_root(folder)
    for name in ("git", "make"):
        add_program(root, name)
    return root


def copy_folders(place: Path, root: Path) -> Path:
    """Copy the folders, with Dockerfiles that begin with this root file system."""
    shutil.copytree(FOLDERS, place)
    for dockerfile in place.glob("*/environment/Dockerfile"):
        text = dockerfile.read_text()
        assert text.startswith(BASE)
        dockerfile.write_text(text.replace(BASE, f"FROM {root}\n"))
    return place


def without_build(name: str) -> HarborFolder:
    """Return a folder whose files are put into the working folder of any image, in place of its Dockerfile."""
    top = FOLDERS / name
    texts = {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}
    del texts["environment/Dockerfile"]
    return HarborFolder(texts.pop("task.toml").partition("\n")[2], texts)

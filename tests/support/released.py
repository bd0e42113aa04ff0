"""Released versions of other projects, each in an environment of its own with the Python that it needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOCKS = Path(__file__).resolve().parents[1] / "locks"
CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")


def environment(project: str, version: str, python: str) -> Path:
    """Return the environment; install it if it is new. Skips the test if this Python, such as `python3.12`, is not there."""
    found = _interpreter(python)
    if found is None:
        pytest.skip(f"{project} {version} needs {python}")
    folder = CACHE / project
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / version
    with (folder / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "complete").exists():
            shutil.rmtree(made, ignore_errors=True)
            subprocess.run([found, "-m", "venv", made], check=True)
            # --no-deps: the lists are complete. --ignore-requires-python: some ask for the newest patch release of a
            # Python, and run with earlier ones too
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
            install += ["--cache-dir", str(CACHE / "pip")]
            subprocess.run([made / "bin" / "python", *install, "-r", LOCKS / f"{project}-{version}.txt"], check=True)
            (made / "complete").touch()
    return made


def unpacked(project: str, version: str) -> Path:
    """Return a folder with the files of the list's packages, which no Python has installed."""
    folder = CACHE / project
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / version
    with (folder / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "complete").exists():
            shutil.rmtree(made, ignore_errors=True)
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--ignore-requires-python"]
            install += ["--cache-dir", str(CACHE / "pip"), "--target", str(made)]
            subprocess.run([sys.executable, *install, "-r", str(LOCKS / f"{project}-{version}.txt")], check=True)
            (made / "complete").touch()
    return made


def _interpreter(name: str) -> str | None:
    """Find an interpreter, also among those of pyenv that are not selected."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))]
    works = (p for p in found if p and not subprocess.run([p, "-c", ""], capture_output=True, check=False).returncode)
    return next(works, None)

"""Root file systems that the images of instances begin with, one for each language."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from rollyard.sandbox.build_once import build_once
from tests.support.debian_packages import debian_program
from tests.support.small_roots import python_root
from tests.support.swe_instances.releases import CACHED

PYTEST = ("pytest==8.3.5", "pluggy==1.5.0", "iniconfig==2.1.0", "packaging==25.0")
TAPE = "tape@5.9.0"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/lib/go/bin", "HOME": "/root", "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOCACHE": "/tmp/go", "CGO_ENABLED": "0",
}  # fmt: skip
ACTIVATE = "conda() { :; }\n"
"""Environments of the families are conda's. Here the image's Python is the only one."""


def base_root(language: str) -> Path:
    """Return the folder. It is made once on a machine."""
    more = {"python": lambda root: None, "javascript": _add_node, "go": _add_go}[language]

    def fill(folder: Path) -> None:
        root = python_root(folder / "root")
        _add(root, Path(shutil.which("git") or debian_program("git", "usr/bin/git")), "usr/bin/git")
        _add_pytest(root)
        _write(root / "opt/miniconda3/bin/activate", ACTIVATE)
        more(root)

    return build_once(CACHED / f"base-{language}", fill) / "root"


def _add_pytest(root: Path) -> None:
    packages = root / "usr/lib/python3/dist-packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", str(packages), *PYTEST], check=True)
    shutil.rmtree(packages / "bin")
    _write(
        root / "usr/bin/pytest", "#!/usr/bin/python3\nimport pytest\nraise SystemExit(pytest.console_main())\n", 0o755
    )
    (root / "usr/bin/python").symlink_to("python3")


def _add_node(root: Path) -> None:
    found = shutil.which("node")
    _add(root, Path(found) if found else debian_program("nodejs", "usr/bin/node"), "usr/bin/node")
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(root), TAPE]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)


def _add_go(root: Path) -> None:
    go = shutil.which("go")
    library = (
        Path(go).resolve().parents[1] if go else debian_program("golang-1.19-go", "usr/lib/go-1.19/bin/go").parents[1]
    )
    left_out = shutil.ignore_patterns("testdata", "test", "doc", "misc", "api", "*_race", "*_dynlink", "cmd")
    shutil.copytree(library, root / "usr/lib/go", ignore=left_out)


def _add(root: Path, program: Path, place: str) -> None:
    shutil.copy2(program, root / place)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for found in {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}:
        library = root / found.lstrip("/")
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, library)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)

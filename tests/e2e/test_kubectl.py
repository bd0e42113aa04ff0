"""Released kubectls on a real server, with their validation on. Each command of the table must do what it does on
Kubernetes, or say what one can do instead."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.kubectl_probes import OTHERS, PROBES, pool
from tests.support.yard import Yard

pytestmark = [pytest.mark.heavy, pytest.mark.slow(70)]
OLD = 24
OLD_CANNOT = ("version", "cluster-info", "api-resources --categories", "events", "auth whoami", "apply --prune")
"""Commands and options that this kubectl lacks, or prints in another way."""
OLD_NEEDS_CONTENT = ("diff", "explain", "apply --dry-run=server", "delete rp d --dry-run=server")
"""Commands that need more of OpenAPI 2 than the server has."""
OLD_HIDES_THE_REASON = ('patch rolloutpools/a --type=json -p [{"op":"test"', "delete rp d --cascade=orphan")


async def _problems(kubectl: Kubectl) -> list[str]:
    found = []
    for probe in PROBES:
        code, out = await kubectl.run(*shlex.split(probe.words.replace('"', '\\"')), text=probe.text, **probe.env)
        if problem := probe.problem(code, out):
            found.append(problem)
    return found


@pytest.mark.parametrize(
    "minor", [pytest.param(32, marks=pytest.mark.long), pytest.param(36, marks=pytest.mark.long), 37]
)
async def test_every_command_of_the_table_works_with_validation_on(yard: Yard, tmp_path: Path, minor: int) -> None:
    kubectl = Kubectl(minor, yard.data / "admin.kubeconfig", tmp_path / "home")
    assert await _problems(kubectl) == []


@pytest.mark.long
async def test_an_old_kubectl_lacks_only_what_it_never_had_and_openapi_2(yard: Yard, tmp_path: Path) -> None:
    kubectl = Kubectl(OLD, yard.data / "admin.kubeconfig", tmp_path / "home")
    known = tuple(f"kubectl {words}" for words in (*OLD_CANNOT, *OLD_NEEDS_CONTENT, *OLD_HIDES_THE_REASON))
    assert [p for p in await _problems(kubectl) if not p.startswith(known)] == []


async def test_a_watch_through_a_label_selector_sees_objects_leave_and_enter(yard: Yard, tmp_path: Path) -> None:
    kubectl = Kubectl(37, yard.data / "admin.kubeconfig", tmp_path / "home")
    await kubectl.ok("apply", "-f", "-", text=OTHERS)
    await kubectl.ok("apply", "-f", "-", text=pool("one", "a"))
    await kubectl.ok("apply", "-f", "-", text=pool("two", "b"))
    words = ["get", "rp", "-l", "team=a", "--watch", "--output-watch-events"]
    watching = await asyncio.create_subprocess_exec(
        *kubectl.command, *words, env=kubectl.environment(), stdout=asyncio.subprocess.PIPE
    )
    assert watching.stdout is not None
    lines: list[list[str]] = []

    async def sees(*wanted: str) -> None:
        assert watching.stdout is not None
        async with asyncio.timeout(60):
            while list(wanted) not in lines:
                lines.append((await watching.stdout.readline()).decode().split()[:2])

    try:
        await sees("ADDED", "one")
        await kubectl.ok("label", "rp", "one", "team=b", "--overwrite")
        await sees("DELETED", "one")
        await kubectl.ok("label", "rp", "two", "team=a", "--overwrite")
        await sees("ADDED", "two")
        await kubectl.ok("delete", "rp", "two")
        await sees("DELETED", "two")
    finally:
        watching.kill()
        await watching.wait()

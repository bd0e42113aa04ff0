"""Before the agent starts, the repository has what led to HEAD, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe.history_scrub import scrub
from tests.support.swe_repository import SECRET
from tests.tasks.swe.conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

ME = "git config user.name a; git config user.email a@example.org"
KEPT_BY = {
    "a tag, a branch and the reflog": "true",
    "a remote": "git remote add origin https://example.org/x; git update-ref refs/remotes/origin/x future; git pack-refs --all",
    "nothing but the reflog": "git tag -d v2; git branch -D future",
    "no name at all": "git tag -d v2; git branch -D future; git reflog expire --expire=now --all",
    "a pack that is kept": "git repack -adq; for p in .git/objects/pack/*.pack; do touch ${p%.pack}.keep; done",
    "an annotated tag of a tree": "git tag -a tree -m x future^{tree}",
    "a stash": "git checkout -q future -- .; git stash -q",
    "a note": f"git notes add -m '{SECRET}' HEAD",
    "a replaced object": "git replace HEAD future",
    "another worktree": "git worktree add -q /other future; rm -rf /other",
    "an alternate": "mkdir -p /store; cp -r .git/objects /store/; echo /store/objects > .git/objects/info/alternates",
    "heads of old work": "for name in ORIG_HEAD FETCH_HEAD MERGE_HEAD; do git rev-parse future > .git/$name; done",
    "a bundle": "git bundle create -q all.bundle --all",
    "a submodule": "git clone -q --bare . .git/modules/sub; mkdir sub; echo 'gitdir: ../.git/modules/sub' > sub/.git",
    "a repository in the repository": "git clone -q . inner",
    "a repository elsewhere": "mv .git /elsewhere; echo 'gitdir: /elsewhere' > .git",
    "a detached head": "git checkout -q --detach",
    "staged work": "echo 'print(1)' > calc/staged.py; git add -A",
}
SEARCH = f"""
cd /testbed; git cat-file --batch-all-objects --batch-check='%(objectname)' | git cat-file --batch | grep -ac '{SECRET}'
git for-each-ref | wc -l; git reflog 2>/dev/null | wc -l; git log --format=%s; git fsck --no-progress; git status --short
find / -xdev \\( -name '*.bundle' -o -path /elsewhere -o -path /store/objects \\) -print
find /testbed -mindepth 2 -name .git; cat .git/config
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(site: Site) -> AsyncIterator[Sandbox]:
    async with site.fresh() as fresh:
        await fresh.bash("cp -a /testbed /pristine", 60)
        yield fresh


@pytest.mark.parametrize("keep", KEPT_BY.values(), ids=KEPT_BY.keys())
async def test_the_future_is_gone_however_it_was_kept(sandbox: Sandbox, keep: str) -> None:
    await sandbox.bash(
        f"cd /; rm -rf testbed store elsewhere other; cp -a pristine testbed; cd testbed; ({ME}; {keep})", 60
    )
    await scrub(sandbox, "/testbed", [])
    found = (await sandbox.bash(SEARCH, 60)).output.splitlines()
    assert found[:5] == ["0", "1", "0", "base", "first"], found
    status = [line for line in found[5:] if line.startswith(("A ", "M ", "??"))]
    left = [line for line in found[5:] if line not in status and not line.startswith(("[core]", "\t", "[user]"))]
    assert not left, found


async def test_a_history_with_a_hidden_file_is_cut_off(sandbox: Sandbox) -> None:
    await sandbox.bash("cd /; rm -rf testbed; cp -a pristine testbed", 60)
    await scrub(sandbox, "/testbed", ["tool.sh"])
    found = await sandbox.bash(
        "cd /testbed; git log --format=%s; git log -p --all | grep -c 'echo tool'; ls tool.sh; git status --short", 60
    )
    assert found.output.splitlines()[:2] == ["base", "0"]
    assert "No such file" in found.output


async def test_a_folder_without_git_stays_as_it_is(sandbox: Sandbox) -> None:
    await sandbox.bash("cd /; rm -rf testbed; cp -a pristine testbed; rm -rf testbed/.git", 60)
    await scrub(sandbox, "/testbed", [])
    assert "ops.py" in (await sandbox.bash("ls -a /testbed/calc", 60)).output

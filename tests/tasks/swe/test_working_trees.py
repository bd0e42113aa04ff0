"""Whatever an agent does with git and its files: the tree that is scored is the tree that it left."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rollyard.kinds.swe_task import SweTask
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe import repository
from rollyard.tasks.swe.handler import TREE
from rollyard.tasks.swe.working_tree import read_tree
from tests.support.swe_repository import swe_task
from tests.tasks.swe.conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASK = swe_task()
SWE = TASK.fields_as(SweTask)
MEND = "sed -i 's/a - b/a + b/' calc/ops.py"
ME = "git config user.name a; git config user.email a@example.org"
SEEN = """
import hashlib, json, os, stat
def seen(top):
    found = {}
    for folder, folders, files in os.walk(os.fsencode(os.path.realpath(top))):
        folders[:] = [name for name in folders if name != b".git"]
        for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            path = os.path.join(folder, name); info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode): what = "link " + os.readlink(path).hex()
            elif stat.S_ISREG(info.st_mode):
                what = f"{bool(info.st_mode & 0o100)} " + hashlib.sha256(open(path, "rb").read()).hexdigest()
            else: continue
            if name != b".git": found[path[len(os.path.realpath(top)) + 1:].hex()] = what
    return found
print(json.dumps(seen("/testbed")))
"""
COUNTED = {
    "nothing": "true",
    "edited": MEND,
    "staged": f"{MEND}; git add -A",
    "committed": f"{ME}; {MEND}; git commit -qam mended",
    "amended into the first commit": f"{ME}; {MEND}; git add -A; git commit -q --amend -m other",
    "committed on another branch": f"{ME}; git checkout -qb other; {MEND}; git commit -qam mended",
    "committed on a branch that was left": (
        f"{ME}; git checkout -qb other; {MEND}; git commit -qam x; "
        f"git checkout -q -"
    ),
    "committed with a detached head": f"{ME}; git checkout -q --detach; {MEND}; git commit -qam mended",
    "on a branch without a past": f"{ME}; git checkout -q --orphan new; {MEND}; git add -A; git commit -qm new",
    "stashed": f"{ME}; {MEND}; git stash -q",
    "stashed and taken back": f"{ME}; {MEND}; git stash -q; git stash pop -q",
    "a new file that is not tracked": (
        "echo 'def add(a, b): return a + b' > calc/new.py; "
        "echo 'from calc.new import *' > calc/ops.py"
    ),
    "a new file that git ignores": (
        "echo 'def add(a, b): return a + b' > calc/local_new.py; echo 'from calc.local_new import *' > calc/ops.py"
    ),
    "a folder that git ignores": "mkdir build; echo x > build/made.txt",
    "excluded by a file of the user's": f"echo '*' > .git/info/exclude; {MEND}; echo 1 > calc/more.py",
    "ignored by a new .gitignore": f"echo '*' > .gitignore; {MEND}; echo 1 > calc/more.py",
    "a deleted file": "rm calc/keep.py",
    "a deleted folder": "git rm -rq calc/old",
    "all files of a folder deleted one by one": "rm docs/guide.txt",
    "renamed by git": f"git mv calc/keep.py calc/kept.py; {MEND}",
    "renamed by mv": f"mv calc/old calc/older; {MEND}",
    "renamed in case alone": "mv docs/guide.txt docs/Guide.txt",
    "a folder moved into another": "mkdir deep; mv docs deep/docs",
    "made executable": "chmod +x tool.sh",
    "made executable in the index alone": "git update-index --chmod=+x tool.sh",
    "a new link": "ln -s ../calc/ops.py docs/ops",
    "a link to nowhere": "ln -s /nowhere/at/all dangling",
    "a file that became a link": "rm calc/keep.py; echo 'KEPT = 1' > calc/real.py; ln -s real.py calc/keep.py",
    "a link that became a file": "rm link; echo text > link",
    "a link that became a folder": "rm link; mkdir link; echo text > link/file",
    "a link that has another target": "ln -sfn tool.sh link",
    "a module that became a package": (
        "rm calc/ops.py; mkdir calc/ops; "
        "echo 'def add(a, b): return a + b' > calc/ops/__init__.py"
    ),
    "a package that became a module": "rm -r calc/old; echo 'OLD = 1' > calc/old.py",
    "a folder that became a file": "rm -r docs; echo text > docs",
    "a folder that became a link": "mv docs papers; ln -s papers docs",
    "a binary file": "head -c 5000 /dev/urandom > data.bin",
    "a new binary file with zeros": "printf 'a\\0b\\0' > zeros.bin",
    "an empty file": "touch calc/empty.py",
    "a file that became empty": ": > calc/keep.py",
    "empty folders": "mkdir -p hollow/hollow",
    "a line feed in a name": "echo 1 > $'calc/a\\nb.py'",
    "a name that is not UTF-8": "echo 1 > $'calc/\\xff\\xfe.py'",
    "a name that begins with a dash": "echo 1 > ./--exec=sh; echo 1 > ./-rf",
    "quotes, spaces and backslashes in a name": "echo 1 > 'calc/a \"b\\c'\"'\"' d.py'",
    "a name of 255 bytes": "echo 1 > calc/$(printf 'n%.0s' $(seq 252)).py",
    "folders within folders": "mkdir -p $(printf 'd/%.0s' $(seq 60)); echo 1 > $(printf 'd/%.0s' $(seq 60))x",
    "lines that end with CR LF": "printf 'def add(a, b):\\r\\n    return a + b\\r\\n' > calc/ops.py",
    "no line feed at the end": "printf 'def add(a, b): return a + b' > calc/ops.py",
    ".git deleted": f"{MEND}; rm -rf .git",
    ".git made anew": f"{MEND}; rm -rf .git; git init -q; {ME}; git add -A; git commit -qm all",
    ".git as a file": f"{MEND}; mv .git /elsewhere; echo 'gitdir: /elsewhere' > .git",
    ".git as a link": f"{MEND}; mv .git /elsewhere; ln -s /elsewhere .git",
    ".git as nonsense": f"{MEND}; rm -rf .git; echo nonsense > .git",
    "a broken index": f"{MEND}; echo nonsense > .git/index; touch .git/index.lock",
    "no objects": f"{MEND}; rm -rf .git/objects",
    "another worktree in the settings": f"git config core.worktree /tmp; {MEND}",
    "a bare repository in the settings": f"git config core.bare true; {MEND}",
    "settings of diff": (
        f"git config diff.noprefix true; git config core.quotepath false; git config diff.external false; "
        f"{MEND}"
    ),
    "textconv and attributes": (
        f"git config diff.x.textconv false; echo '* diff=x -text binary' > .gitattributes; "
        f"{MEND}"
    ),
    "autocrlf": (
        f"git config core.autocrlf true; git config core.safecrlf false; "
        f"echo '* text eol=crlf' > .gitattributes; {MEND}"
    ),
    "filters": (
        f"git config filter.x.clean 'tr a-z A-Z'; git config filter.x.smudge 'cat'; "
        f"echo '* filter=x' > .gitattributes; {MEND}"
    ),
    "a monitor of files": (
        f"git config core.fsmonitor 'echo nothing'; git config core.untrackedCache true; "
        f"git status >/dev/null; {MEND}"
    ),
    "hooks": (
        f"mkdir -p .git/hooks; printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*; "
        f"{MEND}"
    ),
    "assumed unchanged": (
        f"git update-index --assume-unchanged calc/ops.py; git update-index --skip-worktree calc/keep.py; "
        f"{MEND}"
    ),
    "a sparse checkout": f"git sparse-checkout set calc >/dev/null 2>&1; {MEND}",
    "replaced objects and grafts": f"git replace -f HEAD HEAD~1; git rev-parse HEAD > .git/shallow; {MEND}",
    "a merge that stopped half-way": (
        f"{ME}; git checkout -qb other; {MEND}; git commit -qam x; git checkout -q -; echo z > calc/ops.py; git commit -qam y; "
        "git merge other >/dev/null 2>&1"
    ),
    "a repository in the repository": f"mkdir inner; git -C inner init -q; echo 1 > inner/file.py; {MEND}",
    "a submodule": (
        f"{ME}; git init -q /sub; git -C /sub commit -q --allow-empty -m x; echo 1 > /sub/in.py; git -C /sub add -A; "
        f"git -C /sub commit -qm y; git -c protocol.file.allow=always submodule add -q /sub sub; {MEND}"
    ),
    "work in another worktree": f"git worktree add -q /other; cd /other; {MEND}",
    "variables of git": f"export GIT_DIR=/nowhere GIT_WORK_TREE=/tmp GIT_INDEX_FILE=/tmp/i; {MEND}",
    "hard links": "ln calc/keep.py calc/same.py; echo 1 > one.txt; ln one.txt two.txt",
    "a file with holes": (
        "truncate -s 100000 holes.bin; "
        "printf x | dd of=holes.bin bs=1 seek=50000 conv=notrunc 2>/dev/null"
    ),
    "fifos": f"mkfifo pipe; {MEND}",
    "a fifo in a file's place": "rm docs/guide.txt; mkfifo docs/guide.txt",
    "files without rights": f"{MEND}; chmod 000 calc/ops.py calc/keep.py",
    "folders without rights": f"{MEND}; chmod 000 docs; chmod 000 calc/old",
    "old times": f"{MEND}; touch -d '2001-01-01' calc/ops.py; find . -exec touch -h -d '2001-01-01' {{}} +",
    "the same length and the same time": (
        "touch -r calc/ops.py /tmp/t; printf 'def add(a, b):\\n    return a + b\\n' > calc/ops.py; "
        "touch -r /tmp/t calc/ops.py"
    ),
    "the folder moved away and linked": f"cd /; mv testbed moved; ln -s moved testbed; cd moved; {MEND}",
    "the folder made anew": f"{MEND}; cd /; cp -a testbed copy; rm -rf testbed; mv copy testbed",
    "many files": "for n in $(seq 500); do echo $n > docs/f$n.txt; done",
}  # fmt: skip
BY_HAND = "import sys; sys.path.insert(0, '.'); from calc import keep, ops; assert (ops.add(2, 3), keep.KEPT) == (5, 1)"
RESET = "cd /; rm -rf testbed moved other elsewhere sub copy; cp -a pristine testbed"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(site: Site) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    """The sandbox of RUN, after INIT, and that of EVAL, with the tests in place. Both are reset for each test."""
    async with site.fresh() as run, site.fresh() as fresh:
        await site.handler.init(TASK, run)
        await repository.put_tests(fresh, SWE)
        for sandbox in (run, fresh):
            await sandbox.bash("cp -a /testbed /pristine", 60)
        yield run, fresh


async def counted(sandbox: Sandbox) -> dict[str, str]:
    """Return path -> content of the files that count."""
    cell = await sandbox.ipython(SEEN, 60)
    assert not cell.error, cell.output
    found = {
        bytes.fromhex(name).decode("utf-8", "surrogateescape"): what for name, what in json.loads(cell.output).items()
    }
    return {name: what for name, what in found.items() if not name.startswith("tests/") and not name.endswith(".pyc")}


@pytest.mark.parametrize("work", COUNTED.values(), ids=COUNTED.keys())
async def test_the_tree_that_is_scored_is_the_one_that_the_agent_left(
    site: Site, pair: tuple[Sandbox, Sandbox], work: str
) -> None:
    run, fresh = pair
    for sandbox in pair:
        await sandbox.bash(RESET, 60)
    await run.bash(f"(cd /testbed\n{work}\n)", 60)
    artifact = (await site.handler.collect(TASK, run))[TREE]
    assert isinstance(artifact, bytes)
    await repository.lay_over(fresh, SWE, "/testbed", read_tree(artifact))
    assert await counted(fresh) == await counted(run)


@pytest.mark.long
@pytest.mark.parametrize("site", ["bubblewrap", "apptainer"], indirect=True)
@pytest.mark.parametrize("work", COUNTED.values(), ids=COUNTED.keys())
async def test_the_reward_is_that_of_the_tree_itself(site: Site, work: str) -> None:
    async with site.fresh() as run:
        await site.handler.init(TASK, run)
        await run.bash(f"(cd /testbed\n{work}\n)", 60)
        by_hand = await run.bash(f"(cd /testbed && python3 -B -c {shlex.quote(BY_HAND)})", 60)
        artifact = await site.handler.collect(TASK, run)
    assert (await site.scored(TASK, artifact)).reward == float(by_hand.exit_code == 0)


async def test_an_archive_shows_an_image_and_not_a_copy(site: Site) -> None:
    """The tests above begin with a copy of the repository, of which each file is new. In an image each change stands alone."""
    work = "rm calc/keep.py; mv docs papers; chmod +x tool.sh; echo 1 > calc/new.py; rm -r calc/old .git; echo OLD > calc/old"
    async with site.fresh() as run, site.fresh() as fresh:
        await site.handler.init(TASK, run)
        before = await counted(run)
        await run.bash(f"cd /testbed; {work}", 60)
        artifact = (await site.handler.collect(TASK, run))[TREE]
        assert isinstance(artifact, bytes)
        found = await repository.lay_over(fresh, SWE, "/testbed", read_tree(artifact))
        after = await counted(fresh)
        assert after == await counted(run)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {path.decode() for path in found.written.keys() | found.deleted} == changed

"""The repository of a task in a sandbox: its preparation, its patches, its listing, and the agent's work laid over it."""

from __future__ import annotations

import asyncio
import io
import posixpath
import secrets
import shlex
import time
from collections.abc import Iterable

import zstandard

from rollyard.core.errors import TaskError
from rollyard.kinds.swe_task import Base64File, SweTask
from rollyard.sandbox.program import STDERR, STDOUT, Program, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe.control_tests import control_tests, controls_among
from rollyard.tasks.swe.counted_paths import CountedPaths, closed_names, python_tests
from rollyard.tasks.swe.test_settings import SHARED_FILES
from rollyard.tasks.swe.tree_difference import FILE, BaseTree, TreeDifference, archive_of, difference, parse_listing
from rollyard.tasks.swe.verdict import tests_of
from rollyard.tasks.swe.working_tree import LARGEST_FILE_BYTES, WorkingTree

SETUP_SECONDS = 1800.0
PATCH_SECONDS = 120.0
MOST_TESTS = 2000
"""Greatest number of files in hidden folders that become control tests."""
LISTING = "rollyard.sandbox_agent.tree_listing"
_GIT = "git -c safe.directory='*'"
_CHECKOUT = """
base=$({git} rev-parse -q --verify '{base}^{{commit}}') || {{ echo 'it has no commit {base}'; exit 1; }}
if [ "$({git} rev-parse HEAD)" != "$base" ] && [ "$({git} log -1 --format='%P %s')" != "$base SWE-bench" ]; then
  {git} checkout -qf --detach "$base" || exit
fi
"""
"""An image that has the commit checked out keeps its own changes to it. SWE-bench's images have them in such a commit."""


async def prepare(sandbox: Sandbox, swe: SweTask) -> str:
    """Bring the repository to the state in which the agent begins. Return its path without links. Raises TaskError."""
    if swe.base_commit is not None or swe.setup is not None:
        checkout = _CHECKOUT.format(git=_GIT, base=swe.base_commit) if swe.base_commit is not None else ""
        script = f"{checkout}\n{swe.setup or ''}"
        await _script(sandbox, swe, script, SETUP_SECONDS, "the repository cannot be prepared")
    found = await sandbox.bash(f"(cd {shlex.quote(swe.repository)} && pwd -P)", PATCH_SECONDS)
    path = found.output.strip()
    if found.exit_code != 0 or path in ("", "/"):
        raise TaskError(f"the image has no folder {swe.repository}: {path}")
    return path


async def apply_patch(sandbox: Sandbox, swe: SweTask, patch: str, name: str) -> None:
    """Apply a patch of the task in the repository. Raises TaskError. `name`: name of the task's field."""
    path = f"/tmp/{secrets.token_hex(16)}.patch"
    try:
        await sandbox.write_file(path, patch.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise TaskError(f"`{name}` cannot be written in the sandbox: {error}") from error
    apply = f"{_GIT} apply --whitespace=nowarn"
    ways = (f"{apply} {path}", f"{apply} --recount --ignore-whitespace {path}", f"patch -p1 --batch --fuzz=5 -i {path}")
    script = f"{{ {' || '.join(ways)}; }} && rm {path}"
    await _script(sandbox, swe, script, PATCH_SECONDS, f"`{name}` cannot be applied to the image's repository")


async def put_tests(sandbox: Sandbox, swe: SweTask) -> None:
    """Write the tests' files. This comes before the agent's files, which take none of their places. So no attribute or link of
    the agent changes what is written. Raises TaskError."""
    if swe.test_patch:
        await apply_patch(sandbox, swe, swe.test_patch, "test_patch")
    for path, file in swe.test_files.items():
        place = swe.inside(path)
        try:
            if file is None:
                await sandbox.bash(f"rm -rf -- {shlex.quote(place)}", PATCH_SECONDS)
            else:
                content = file.content() if isinstance(file, Base64File) else file.encode("utf-8", "surrogateescape")
                await sandbox.write_file(place, content)
        except OSError as error:
            raise TaskError(f"the tests' file {path} cannot be written in a fresh sandbox: {error}") from error


async def list_python_tests(sandbox: Sandbox, swe: SweTask) -> list[str]:
    """Return the paths of the task's tests in Python, with those in its hidden folders. This comes before the agent's files, so
    that no program of the agent's tells them."""
    named = [swe.inside(path) for path in python_tests(swe)]
    folders = shlex.join(path for path in named if not path.endswith(".py"))
    if not folders:
        return named
    found = await sandbox.bash(f"find {folders} -name '*.py' -type f 2>/dev/null | head -n {MOST_TESTS}", PATCH_SECONDS)
    return [path for path in [*named, *found.output.splitlines()] if path.endswith(".py")]


async def put_controls(sandbox: Sandbox, swe: SweTask, paths: Iterable[str]) -> set[str]:
    """Change the tests' files, which are in place, into control tests. Return the names of these tests in the task's lists."""
    found: dict[str, set[str]] = {}
    for path in paths:
        try:
            source = await sandbox.read_file(path, LARGEST_FILE_BYTES)
            changed, tests = await asyncio.to_thread(control_tests, source)
            if tests:
                await sandbox.write_file(path, changed)
        except OSError:  # a test that the task deletes
            continue
        module = posixpath.basename(path.removesuffix(".py").removesuffix("/__init__"))
        found.setdefault(module, set()).update(tests)
    return controls_among(tests_of(swe), found)


async def lay_over(sandbox: Sandbox, swe: SweTask, repository: str, tree: WorkingTree) -> TreeDifference:
    """Change the repository of a fresh sandbox to the agent's working tree, as far as that counts. Return the difference."""
    base = await list_tree(sandbox, swe, repository, tree)
    settings = {}
    for path, entry in base.items():
        folder, _, last = path.rpartition(b"/")
        changed = path in tree.files or (folder in tree.folders and last not in tree.folders[folder])
        if changed and entry.kind == FILE and last.decode("utf-8", "replace") in SHARED_FILES:
            name = f"{repository}/{path.decode('utf-8', 'surrogateescape')}"
            settings[path] = await sandbox.read_file(name, LARGEST_FILE_BYTES)
    found = await asyncio.to_thread(lambda: difference(tree, base, CountedPaths(swe, base, settings).reason))
    if not found.empty:
        archive = archive_of(found, base, time.time_ns(), repository.encode())
        await sandbox.restore(io.BytesIO(zstandard.compress(archive, 1)))
    return found


async def list_tree(sandbox: Sandbox, swe: SweTask, repository: str, tree: WorkingTree) -> BaseTree:
    """List the repository of a fresh sandbox, with digests of the files that the agent has changed. Raises TaskError."""
    spec = ProgramSpec([repository, *sorted(closed_names(swe))], own=LISTING)
    output: list[bytes] = []
    errors: list[bytes] = []
    async with await sandbox.start_program(spec) as program, asyncio.TaskGroup() as group:
        group.create_task(_feed(program, b"\0".join(tree.files)))
        group.create_task(_drain(program, STDOUT, output))
        group.create_task(_drain(program, STDERR, errors))
        code = await program.ended
    if code != 0:
        why = b"".join(errors).decode("utf-8", "replace").strip()[-300:]
        raise TaskError(f"the repository {repository} of the image cannot be listed: {why}")
    return await asyncio.to_thread(parse_listing, b"".join(output))


async def _feed(program: Program, data: bytes) -> None:
    await program.write(data)
    program.end_input()


async def _drain(program: Program, channel: int, into: list[bytes]) -> None:
    while chunk := await program.read(channel):
        into.append(chunk)


async def _script(sandbox: Sandbox, swe: SweTask, script: str, seconds: float, fault: str) -> None:
    path = f"/tmp/{secrets.token_hex(16)}.sh"
    try:
        await sandbox.write_file(path, script.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise TaskError(f"{fault}: {error}") from error
    done = await sandbox.bash(
        f"(cd {shlex.quote(swe.repository)} && . {path}); code=$?; rm -f {path}; (exit $code)", seconds
    )
    if done.exit_code != 0:
        why = "it took too long" if done.timed_out else done.output.strip()[-500:]
        raise TaskError(f"{fault}: {why}")

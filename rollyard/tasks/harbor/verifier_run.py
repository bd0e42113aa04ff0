"""One run of a task's verifier in a sandbox."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from rollyard.core.errors import TaskError
from rollyard.kinds.harbor_config import HarborStep
from rollyard.kinds.harbor_task import HarborTask
from rollyard.sandbox.program import ProgramRefused
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.harbor.reward_files import (
    REWARD_JSON,
    REWARD_TEXT,
    Rewards,
    UnreadableReward,
    read_rewards,
)

AGENT_LOGS, VERIFIER_LOGS, ARTIFACTS = "/logs/agent", "/logs/verifier", "/logs/artifacts"
TESTS, SCRIPT, OUTPUT = "/tests", "/tests/test.sh", f"{VERIFIER_LOGS}/test-stdout.txt"
MOST_REWARD_BYTES, MOST_OUTPUT_BYTES, SHOWN_CHARS = 1 << 20, 16 << 20, 600
_SHELL = (
    '[ $# = 0 ] || export "$@"; if [ -x /bin/bash ]; then exec /bin/bash -c "$0"; elif [ -x /usr/bin/bash ]; then '
    'exec /usr/bin/bash -c "$0"; elif [ -x /usr/local/bin/bash ]; then exec /usr/local/bin/bash -c "$0"; '
    'else exec /bin/sh -c "$0"; fi'
)
"""Whole paths, because PATH may begin in a folder of the agent."""
SHORT_SECONDS = 60.0
"""Longest time of commands that only make or empty folders."""


@dataclass(frozen=True)
class Verified:
    """Result of a verifier."""

    rewards: Rewards | None
    """None: it gave none."""
    why: str = ""
    """Reason for no reward."""
    timed_out: bool = False
    output: str = ""
    """End of what it printed."""
    suspicions: tuple[str, ...] = ()
    """Sentences about what may have given a reward that is not deserved."""
    notes: tuple[str, ...] = ()
    """Sentences about what the verifier did not get."""


async def shell(sandbox: Sandbox, command: str, seconds: float, env: Mapping[str, str] | None = None) -> int | None:
    """Run a command in a new shell, in the working folder; return its exit code, None if the time is up. Raises TaskError."""
    exports = [f"{name}={value}" for name, value in (env or {}).items()]
    try:
        return (await sandbox.run(["/bin/sh", "-c", _SHELL, command, *exports], timeout=seconds)).exit_code
    except ProgramRefused as error:
        raise TaskError(f"a command of the task cannot be started: {error}") from error


async def make_folders(sandbox: Sandbox) -> None:
    """Make the folders that each task of Harbor has, also where something else is in their place."""
    folders = f"{AGENT_LOGS} {VERIFIER_LOGS} {ARTIFACTS}"
    if (
        await shell(
            sandbox, f"{_only_folders(f'/logs {folders}')}; mkdir -p {folders} && chmod 777 {folders}", SHORT_SECONDS
        )
        != 0
    ):
        raise TaskError(f"the folders {folders} cannot be made in the image")


async def put_folder(sandbox: Sandbox, task: HarborTask, folder: str, place: str) -> None:
    """Write the files below a folder of the task into a folder of the sandbox. Raises TaskError."""
    for name, content, executable in task.below(folder):
        path = f"{place.rstrip('/')}/{name}"
        try:
            await sandbox.write_file(path, content, 0o755 if executable or name == "solve.sh" else 0o644)
        except OSError as error:
            raise TaskError(f"the task's file {folder}{name} cannot be written to {path}: {error}") from error


async def run_verifier(sandbox: Sandbox, task: HarborTask, seconds: float, step: HarborStep | None = None) -> Verified:
    """Put the tests in place, run them for at most so many seconds, and read the reward. Raises TaskError."""
    if step is not None:
        await empty_folders(sandbox, VERIFIER_LOGS, TESTS)
    places = "" if task.is_bundled else f"; {_only_folders(TESTS)}"
    await shell(sandbox, f"rm -rf {REWARD_JSON} {REWARD_TEXT}{places}", SHORT_SECONDS)
    await make_folders(sandbox)
    if not task.is_bundled:
        await put_folder(sandbox, task, "tests/", TESTS)
    if step is not None:
        await put_folder(sandbox, task, f"steps/{step.name}/tests/", TESTS)
    command = f"(chmod +x {SCRIPT}; {SCRIPT}) > {shlex.quote(OUTPUT)} 2>&1"
    env = task.config.verifier.env | (step.verifier.env if step is not None else {})
    code = await shell(sandbox, command, seconds, task.env(env))
    output = await _end_of_output(sandbox)
    if code is None:
        return Verified(None, f"the verifier took more than {seconds:g} s", True, output)
    try:
        found = await asyncio.gather(_read(sandbox, REWARD_JSON), _read(sandbox, REWARD_TEXT))
        files = read_rewards(*found, names_text=_names_text_alone(task, step))
        return Verified(files.rewards, output=output, suspicions=files.suspicions, notes=files.notes)
    except UnreadableReward as error:
        return Verified(None, str(error), output=output)


async def empty_folders(sandbox: Sandbox, *folders: str) -> None:
    """Empty folders, and make those that are missing, also where something else is in their place."""
    for folder in folders:
        await shell(sandbox, f"rm -rf {folder}; mkdir -p {folder} && chmod 777 {folder}", SHORT_SECONDS)


def _names_text_alone(task: HarborTask, step: HarborStep | None) -> bool:
    """Return whether the tests name reward.txt and never reward.json. Those of an image are not known."""
    folders = ["tests/", *([f"steps/{step.name}/tests/"] if step is not None else [])]
    texts = [content for folder in folders for _, content, _ in task.below(folder)]
    named = {name: any(name in text for text in texts) for name in (b"reward.json", b"reward.txt")}
    return not task.is_bundled and named[b"reward.txt"] and not named[b"reward.json"]


def _only_folders(paths: str) -> str:
    """Return a command that removes files and links in the places of folders."""
    return f"for f in {paths}; do [ -d $f ] && [ ! -L $f ] || rm -rf $f; done"


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return await sandbox.read_file(path, MOST_REWARD_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableReward(f"{path} cannot be read: {error}") from None


async def _end_of_output(sandbox: Sandbox) -> str:
    try:
        return (await sandbox.read_file(OUTPUT, MOST_OUTPUT_BYTES)).decode(errors="replace").strip()[-SHOWN_CHARS:]
    except OSError:
        return ""

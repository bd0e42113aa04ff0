"""Agents that change files at every turn, and a plain model of what they leave."""

from __future__ import annotations

import io
import random
import shlex
import tarfile
from collections.abc import Sequence
from typing import Any

import zstandard

from rollyard.node.same_result import was_cut
from rollyard.trajectory import Turn
from tests.support.scripted_agent import call
from tests.support.scripted_engine import NONCE

ANSWER = "Answer: A"
LOST = "[the shell ended and was started anew; its state is lost]"
"""End of the first result behind a snapshot."""
SLOW = "true"
"""First command of each turn; a test may put a slower one in its place."""


def file_turns(turns: int, seed: int, first: str = SLOW) -> list[str]:
    """Return turns that write, append to, move, delete and show files, and an answer. `first`: command with which each turn
    begins."""
    chance, files = random.Random(seed), ["f0"]
    said = [_bash(first, f"printf %s start-{NONCE} > f0")]
    for number in range(1, turns - 1):
        path = chance.choice(files)
        match chance.randrange(5):
            case 0:
                work = f"printf %s {NONCE}-{number} > f{number}"
                files.append(f"f{number}")
            case 1:
                work = f"printf %s -{NONCE}-{number} >> {path}"
            case 2:
                work = f"mkdir -p d{number} && mv {path} d{number}/moved"
                files[files.index(path)] = f"d{number}/moved"
            case 3:
                work = f"rm {path} && printf %s {NONCE} > f{number}"
                files[files.index(path)] = f"f{number}"
            case _:
                work = f"cat {path}"
        said.append(_bash(first, work))
    return [*said, ANSWER]


def stem_task(name: str) -> dict[str, Any]:
    """Return a task whose prompt has this name and whose answer is ANSWER."""
    return {
        "kind": "stem", "question": f"{name}: Which?", "form": "choice", "answer": "A", "options": ["this", "that"],
        "tools": ["bash"],
    }  # fmt: skip


def _bash(first: str, work: str) -> str:
    return call("bash", command=f"{first} && {work}")


def files_after(turns: Sequence[Turn]) -> dict[str, str]:
    """Return the files that the recorded calls leave, by a model that knows these commands alone. Check the results that show
    files."""
    files: dict[str, str] = {}
    for turn in turns:
        for one, result in zip(turn.tool_calls, turn.tool_results, strict=True):
            shown = _apply(files, one["arguments"]["command"].split(" && ")[1:])
            assert result == (shown or "(no output)") or was_cut(result) or result.endswith(LOST), (turn, files)
            assert shown in result, (turn, files)
    return files


def _apply(files: dict[str, str], commands: Sequence[str]) -> str:
    shown = ""
    for words in map(shlex.split, commands):
        match words:
            case ["printf", "%s", text, ">", path]:
                files[path] = text
            case ["printf", "%s", text, ">>", path]:
                files[path] += text
            case ["mv", path, other]:
                files[other] = files.pop(path)
            case ["rm", path]:
                del files[path]
            case ["cat", path]:
                shown += files[path]
            case ["mkdir", "-p", _]:
                pass
            case _:
                raise AssertionError(words)
    return shown


def files_in(archive: bytes) -> dict[str, str]:
    """Return the files of the working folder in a snapshot's archive."""
    data = zstandard.ZstdDecompressor().stream_reader(archive).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        members = [one for one in found.getmembers() if one.isfile() and one.name.startswith("workspace/")]
        return {one.name.removeprefix("workspace/"): _text(found, one) for one in members}


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode()

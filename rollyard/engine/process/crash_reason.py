"""Finds the reason of a crash in the last output of an engine. Pure.

vLLM has several processes. When one of them dies, the others end too, and print further tracebacks. So the last
traceback may only report an earlier error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_CHARS = 600
ERROR_PREFIX = "error: "
"""Beginning of the line in which the embedded engine prints its final error."""

_PROCESS = re.compile(r"^\([\w. -]+ pid=\d+\) ")
_LOGGED = re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")
_RAISED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*(?:Error|Exception|Exit|Failure|Interrupt)|Exception)(?:: (?P<said>.*))?$"
)
_REFUSED = re.compile(r"^\S+(?: \S+)?: error: (?P<said>.+)$")
"""Format of argparse's errors."""
_CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|EngineCore encountered|Engine core initialization failed|WorkerProc initialization failed|"
    r"Executor failed|died unexpectedly|cancelled|KeyboardInterrupt|SystemExit|Broken ?Pipe|Connection reset|EOFError",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|Cannot allocate memory|bad_alloc|No available memory for the cache|"
    r"larger than the (?:available|maximum)[^.]*KV cache|less than desired (?:GPU|CPU) memory|"
    r"Available memory on node .* is less than",
    re.IGNORECASE,
)


def crash_reason(lines: Sequence[str]) -> str:
    """Return, on one line, the reason that the engine stated, else the last line of its output that is not empty,
    else "it printed nothing"."""
    last = next((line for line in reversed(_without_prefixes(lines)) if line), "it printed nothing")
    return stated_reason(lines) or _shorten(last)


def stated_reason(lines: Sequence[str]) -> str:
    """Return the reason that the engine stated for its exit, on one line; empty if it stated none."""
    plain = _without_prefixes(lines)
    ours = [line.removeprefix(ERROR_PREFIX) for line in plain if line.startswith(ERROR_PREFIX)]
    if ours:
        return _shorten(ours[-1])
    raised = [n for n, line in enumerate(plain) if _RAISED.match(line) or _REFUSED.match(line)]
    causes = [n for n in raised if not _CONSEQUENCE.search(plain[n])]
    if causes:
        return _shorten(_exception_text(plain, causes[-1]))
    if raised:
        return _shorten(_exception_text(plain, raised[-1]))
    return ""


def _without_prefixes(lines: Sequence[str]) -> list[str]:
    return [_LOGGED.sub("", _PROCESS.sub("", line)).rstrip() for line in lines]


def is_out_of_memory(words: str) -> bool:
    return _OUT_OF_MEMORY.search(words) is not None


def _exception_text(lines: Sequence[str], at: int) -> str:
    """Return the type and message of an exception, or the message of argparse. For a validation error of pydantic,
    return the details in the lines after it."""
    if refused := _REFUSED.match(lines[at]):
        return refused["said"]
    raised = _RAISED.match(lines[at])
    assert raised is not None
    if re.search(r"validation errors? for ", lines[at]):
        rest = []
        for line in lines[at + 1 :]:
            if line.lstrip().startswith(("[type=", "For further information")):
                break
            rest.append(line.partition(" [type=")[0])
        return " ".join(rest).strip().removeprefix("Value error, ") or lines[at]
    return f"{raised['type']}: {raised['said']}" if raised["said"] else raised["type"]


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"

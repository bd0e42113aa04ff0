"""Whether a tool call that was run again has had the same result. Pure.

Two results are the same if they are equal after each match of a rule is replaced by the rule's name. The rules are for what
differs between two runs of the same command in equal sandboxes, and on which no conversation should depend.
"""

from __future__ import annotations

import re

_NUMBER = r"\d+(?:\.\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # 2026-11-30T05:02:59.123Z, 2026-11-30 05:02:59 +0000, 2026-11-30
    ("time", re.compile(rf"\b\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK})?(?:Z\b| ?[+-]\d{{2}}:?\d{{2}}\b)?")),
    # Mon Nov 30 05:02:59 UTC 2026, Nov 30 05:02, Nov 30 2026, 30 Nov 2026 05:02:59; of `date`, `ls -l` and logs
    (
        "time",
        re.compile(
            rf"(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +)?(?:\b{_MONTH} +\d{{1,2}}|\b\d{{1,2}} {_MONTH} \d{{4}})\b,?"
            rf"(?: +{_CLOCK}| +\d{{4}}\b)?(?: [AP]M)?(?: [A-Z]{{3,4}}\b)?(?: \d{{4}}\b)?"
        ),
    ),
    ("time", re.compile(rf"\b{_CLOCK}\b")),
    # 1m2.345s of `time`, 0.12s, 3 ms, 2.1 seconds
    ("duration", re.compile(rf"\b(?:\d+m)?{_NUMBER} ?(?:s|ms|us|\u00b5s|ns|secs?|seconds?|minutes?|min)\b")),
    # [1] 4711 of a job that was put into the background; pid 4711, PID: 4711, pid=4711
    ("pid", re.compile(r"(?m)(?<=^\[\d\] )\d+$")),
    ("pid", re.compile(r"(?i)(?<=\bpid)(?:[ =:]|: )?\d+\b")),
    ("address", re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")),
    # names of tempfile and mktemp
    ("temporary", re.compile(r"(?<=/tmp/)(?:tmp[a-z0-9_]{8}|tmp\.[A-Za-z0-9]{6,12})\b")),
    ("port", re.compile(r"(?i)(?<=\bport )\d{4,5}\b|(?<=\blocalhost:)\d{4,5}\b|(?<=\b127\.0\.0\.1:)\d{4,5}\b")),
)
_CUT = re.compile(r"(?m)^\[timed out after .* and was stopped\]$")


def same(first: str, second: str) -> bool:
    return first == second or plain(first) == plain(second)


def plain(result: str) -> str:
    """Return the result with the names of the rules in place of what they match. The width of columns does not count."""
    for name, pattern in RULES:
        result = pattern.sub(f"<{name}>", result)
    return "\n".join(" ".join(line.split()) for line in result.split("\n"))


def was_cut(result: str) -> bool:
    """Whether a call was stopped at its time limit, so that what it did depends on the machine's speed."""
    return _CUT.search(result) is not None

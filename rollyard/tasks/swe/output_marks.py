"""Lines that a script may print around the output of its tests. Pure."""

from __future__ import annotations

import re

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_SILENT = re.compile(r"^ *: *('>>>>> (?:Start|End) Test Output') *$", re.MULTILINE)
"""A mark that only a shell with `set -x` prints."""
_START_LINE = re.compile(rf"""^[ \t]*(?::|echo)[ \t]+(["']?){START}\1[ \t]*$""", re.MULTILINE)
_KEEP_INPUT, _WAIT = "exec 200<&0 </dev/null\n", "read -r _ <&200 || :\nexec 200<&-"
"""Commands that keep the script's input for the wait, and the wait until this input ends."""


def numbered(text: str, number: str) -> str:
    """Return the script, or one mark, with a number in its marks, which each shell prints."""
    return _SILENT.sub(r"echo \1", text).replace(START, f"{START} {number}").replace(END, f"{END} {number}")


def tells_start(script: str) -> bool:
    """Whether a line of the script tells where the tests start, so that the script can wait there."""
    return _START_LINE.search(script) is not None


def waiting_at_start(script: str) -> str:
    """Return a script that waits at the start of its tests until its standard input ends."""
    return _KEEP_INPUT + _START_LINE.sub(rf"echo '{START}'\n{_WAIT}", script, count=1)


def between(log: bytes, number: str) -> bytes:
    """Return the lines between the marks; nothing if the script did not come to the first one."""
    start, end = (numbered(mark, number).encode() for mark in (START, END))
    _, _, after = log.partition(start)
    before, found, _ = after.rpartition(end)
    return before.partition(b"\n")[2].rpartition(b"\n")[0] if found else after.partition(b"\n")[2]

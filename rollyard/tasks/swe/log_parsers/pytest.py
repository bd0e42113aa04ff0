"""pytest: the short test summary of `-rA`, and the progress lines of `-v`, also with xdist.

A progress line counts between the header of a session and the next line with a title. A summary counts if it is the last one
before the line with the totals. What a test prints appears in between, under FAILURES or PASSES, and does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rollyard.tasks.swe.log_parsers.status import LogStatus, Results, lines

_WORDS = {
    "PASSED": LogStatus.PASSED,
    "XPASS": LogStatus.PASSED,
    "FAILED": LogStatus.FAILED,
    "FAIL": LogStatus.FAILED,
    "SUBFAILED": LogStatus.FAILED,
    "SUBFAIL": LogStatus.FAILED,
    "ERROR": LogStatus.ERROR,
    "SKIPPED": LogStatus.SKIPPED,
    "XFAIL": LogStatus.XFAIL,
}
_WORD = "|".join(_WORDS)
_SUMMARY = re.compile(rf"({_WORD})(?:[\[(]\S*)? +(\S.*)")
_PROGRESS = re.compile(rf" ({_WORD})(?:[\[(]\S*)?(?= |$)")
_WORKER = re.compile(rf"\[gw\d+\] (?:\[ *\d+%\] )?({_WORD})(?:[\[(]\S*)? +(\S.*)")
_ALONE = re.compile(rf"({_WORD})(?: |$)")
_PARAMETERS_END = re.compile(r"\](?= |$)")
_TOTALS = re.compile(r"\d+ \w+(?:, \d+ \w+| subtests \w+)* in \d")


def parse(log: str, name: Callable[[str], str] = str) -> Results:
    """Return statuses by node id; `name` maps a node id to the name that the task's lists have."""
    found, summary = Results(), Results()
    region, pending = "progress", ""
    for line in lines(log):
        if line.startswith("=") and line.endswith("="):
            title = line.strip("= ")
            if title == "short test summary info":
                region, summary = "summary", Results()
            else:
                region = "progress" if title == "test session starts" else "other"
                found.add_all(summary)
                summary = Results()
        elif region == "summary":
            if match := _SUMMARY.match(line):
                _add_summary(summary, match[1], match[2])
            elif _TOTALS.match(line):  # -q: no line with a title follows
                found.add_all(summary)
                region, summary = "progress", Results()
        elif region == "progress":
            pending = _add_progress(found, line, pending)
    found.add_all(summary)
    named = Results()
    for node, status in found.items():
        named.add(name(node), status)
    return named


def _add_summary(summary: Results, word: str, text: str) -> None:
    status = _WORDS[word]
    if word.startswith("SUB"):  # the description of a subtest may have spaces
        text = text[text.rfind(" ", 0, text.find("::")) + 1 :]
    if status is LogStatus.SKIPPED and text.startswith("["):  # the number of skipped tests at one place, and no name
        return
    if word == "PASSED":
        summary.add(text, status)
        return
    summary.add(_without_reason(text) if word == "XPASS" else _without_message(text), status)
    if status is LogStatus.XFAIL:  # swebench's parser of version 2 keeps the reason in the name
        summary.add(text, status)


def _without_message(text: str) -> str:
    """Cut ` - message`; a dash inside the brackets of parameters belongs to the node id."""
    head, _, _ = text.partition(" - ")
    if "[" not in head or head.endswith("]"):
        return head
    closed = text.find("] - ")
    if closed >= 0:
        return text[: closed + 1]
    return text if text.endswith("]") else head


def _without_reason(text: str) -> str:
    """Cut the reason of an XPASS: pytest 6 and 7 put a blank before it, pytest 8 ` - `. Only parameters have blanks; those with
    unequal numbers of `[` and `]` end at the first `]` before a blank."""
    begin = max(0, text.find("::"))
    end = text.find(" ", begin)
    if end < 0 or "[" not in text[begin:end]:
        return text if end < 0 else text[:end]
    ends = [match.end() for match in _PARAMETERS_END.finditer(text, begin)]
    depth, last = 0, begin
    for end in ends:
        piece = text[last:end]
        depth, last = depth + piece.count("[") - piece.count("]"), end
        if depth == 0:
            return text[:end]
    return text[: ends[0]] if ends else text


def _add_progress(found: Results, line: str, pending: str) -> str:
    """Add the line's verdict; return the test whose verdict comes on a later line, behind its output (`-s`)."""
    if match := _WORKER.match(line):
        found.add(match[2], _WORDS[match[1]])
        return pending
    first = line.split(" ", 1)[0]
    if "::" in first:
        match = _PROGRESS.search(line)
        if match is None:
            return first
        named = line[: match.start()]
        # output of the test may follow its id on the line; only parameters have spaces
        found.add(named if " " not in named or named.endswith("]") else first, _WORDS[match[1]])
        return first
    if pending and (match := _ALONE.match(line)):
        found.add(pending, _WORDS[match[1]])
        return ""
    return pending


def first_word(node: str) -> str:
    """Cut a node id at its first space, as SWE-bench's lists have it."""
    return node.split(maxsplit=1)[0]


def short_paths(node: str) -> str:
    """Cut at the first space, and keep the last part of a parameter that is an absolute path."""
    main, bracket, rest = first_word(node).partition("[")
    option, closed, _ = rest.rpartition("]")
    if not bracket or not closed:
        return main + bracket + rest
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rsplit("/", 1)[-1]
    return f"{main}[{option}]"


def mouse_buttons(node: str) -> str:
    """Write matplotlib's mouse buttons as numbers, and cut at the first space."""
    return first_word(node.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))

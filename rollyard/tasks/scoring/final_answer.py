"""Finds the part of a turn that counts as its answer. Takes linear time, so it may run in the node agent. Pure."""

from __future__ import annotations

import re

MAX_ANSWER_CHARS = 2000
"""Longest answer that is judged."""
_BRACES = re.compile(r"\\boxed\{|[{}]")
_ANSWER = re.compile(
    r"(?im)(?:^[ \t>#*_]*(?:(?:my|the)[ \t]+)?(?:final[ \t]+|correct[ \t]+)?answer[ \t*_]*:"
    r"|\b(?:the|my)[ \t]+(?:final[ \t]+|correct[ \t]+)?answer[ \t]+is\b:?)[ \t*_]*"
)


def last_boxed(text: str) -> str | None:
    """Return the content of the last \\boxed{…} with balanced braces; None if there is none. A box around boxes is one answer
    with all that is in it."""
    content = _last_box(text)
    return None if content is None else _without_boxes(text[slice(*content)])


def final_answer(text: str, *, lines: bool = False) -> str | None:
    """Return the content of the last \\boxed{…}, or what follows the last `Answer:` at the begin of a line or the last `the
    answer is`: whichever comes last. None: the text has neither. A box behind `Answer:` is the answer.

    `lines`: the answer may have several lines, to the end of the text. Otherwise it is the first line that is not empty.
    """
    content, begin = _last_box(text), None
    for found in _ANSWER.finditer(text):
        begin = found.end()
    if content is not None and (begin is None or content[1] > begin):
        return _without_boxes(text[slice(*content)])
    if begin is None:
        return None
    answer = text[begin:].strip()
    return answer if lines else answer.partition("\n")[0].strip()


def _last_box(text: str) -> tuple[int, int] | None:
    content, open_at = None, list[tuple[int, bool]]()
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_at.append((brace.end(), brace[0] != "{"))
        elif open_at:
            begin, boxed = open_at.pop()
            alone = content == (begin + len("\\boxed{"), brace.start() - 1)  # a box in a box, and nothing else
            if boxed and not alone:
                content = begin, brace.start()
    return content


def _without_boxes(text: str) -> str:
    return text.replace("\\boxed{", "{")

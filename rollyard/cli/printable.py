"""Text from sandboxes and rollouts, made safe for a person's terminal.

An agent may have written it: file names, output, error messages. A terminal obeys control characters, which may change its
title, hide lines or type keys.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""All control characters except tabs and newlines, those that change the direction of text, and the halves of pairs that
stand for bytes that are no UTF-8."""
_SHORT = {"\n": "\\n", "\t": "\\t"}


def printable(text: str) -> str:
    """Return the text with control characters replaced by visible ones, such as `\\x1b`. Tabs and newlines stay."""
    return _CONTROL.sub(_shown, text)


def printable_line(text: str) -> str:
    """Return the text as one line: tabs and newlines are replaced too."""
    return re.sub(r"[\n\t]", _shown, printable(text))


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, as os.fsdecode returns it
        code -= 0xDC00
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

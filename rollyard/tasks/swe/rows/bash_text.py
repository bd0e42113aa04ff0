"""Pieces of bash scripts, as text."""

from __future__ import annotations

import shlex

TRUST = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
"""Lets git work in a repository whose files belong to another user of the image."""


def with_input(command: str, text: str) -> str:
    """Return a command that reads the text as its standard input."""
    end, number = "END_OF_TEXT", 0
    while end in text:
        number += 1
        end = f"END_OF_TEXT_{number}"
    return f"{command} <<'{end}'\n{text if text.endswith(chr(10)) else text + chr(10)}{end}\n"


def written(path: str, text: str) -> str:
    """Return a command that writes a file."""
    return with_input(f"cat > {shlex.quote(path)}", text)


def heard_after(before: str, tests: str) -> str:
    """Return a script with the output of its second part alone, so that nothing before the tests can pass for a result. The
    first part sets variables for the second one."""
    return "".join([f"{{\n{before.rstrip()}\n}} >/dev/null 2>&1\n" if before.strip() else "", tests.rstrip(), "\n"])

"""Rollyard's own exit codes, and texts for all exit codes. Pure."""

from __future__ import annotations

import signal

REPLACED_EXIT = 3
"""Another process has taken this one's place: a later server its data, a later job its allocation. It is not restarted."""


def exit_code_text(code: int) -> str:
    """`exit code 1`, or `killed by signal 9 (KILL)` for a shell's 137."""
    try:
        return f"killed by signal {code - 128} ({signal.Signals(code - 128).name.removeprefix('SIG')})"
    except ValueError:
        return f"exit code {code}"

"""Rollyard's own exit codes, and texts for all exit codes."""

from __future__ import annotations

import signal

REPLACED_EXIT = 3
"""Exit code of a replaced process: a later server has the data folder, or another process has the allocation. A replaced
process is not restarted."""
LASTING_EXIT = 78
"""Exit code of a process that cannot work on this node until somebody changes something: a model's folder is missing, for
example. It is EX_CONFIG of sysexits.h."""


def exit_code_text(code: int) -> str:
    """Return `exit code 1`, or `killed by signal 9 (KILL)` for 137, which a shell reports after this signal."""
    try:
        return f"killed by signal {code - 128} ({signal.Signals(code - 128).name.removeprefix('SIG')})"
    except ValueError:
        return f"exit code {code}"

"""A run of pytest whose few failed tests run once more, by themselves.

    python -m tests.support.retried_run PYTEST-ARGUMENTS...

Servers, clusters, engines and six workers share two cores, and a machine may have other work besides. A test that fails
in this and passes by itself met a limit of time or a rare race. It does not fail the run, and the last lines name it, so
that somebody looks at it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

MOST_RETRIED = 3
"""With more failed tests than this none runs again: so many are no accident."""
_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
_SOME_FAILED = 1
"""Exit status of pytest when tests ran and some failed."""


def main(arguments: list[str]) -> int:
    """Run pytest with the arguments, and what failed once more; return the exit status."""
    _FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    failed = list(json.loads(_FAILED.read_text())) if status == _SOME_FAILED and _FAILED.exists() else []
    if not failed or len(failed) > MOST_RETRIED:
        return status
    print(f"once more, by themselves: {', '.join(failed)}", flush=True)
    status = _pytest("-rs", *failed)
    if status == 0:
        print(f"UNSTABLE, failed in the run and passed by themselves, please look: {', '.join(failed)}", flush=True)
    return status


def _pytest(*arguments: str) -> int:
    run = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    signal.signal(signal.SIGINT, lambda number, _: run.send_signal(number))  # its fixtures end what they began
    return run.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

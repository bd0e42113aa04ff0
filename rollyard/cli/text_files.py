"""Text from files or standard input. For text that is not UTF-8, the error has the line number."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rollyard.core.errors import BadRequest


def read_text(name: str) -> str:
    """Read the text of a file; `-` is standard input. Raises BadRequest with the file's name."""
    shown = "<stdin>" if name == "-" else name
    try:
        data = _standard_input() if name == "-" else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise BadRequest(f"{shown}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{data[error.start]:02x}"
        raise BadRequest(f"{shown}:{line}: {wrong} is not UTF-8; save the file as UTF-8") from None


def _standard_input() -> bytes:
    """Read all of standard input. Ctrl-C ends the read.

    The handler of `asyncio.run` would only cancel the task, and a task that blocks in a read does not notice this.
    """
    before = signal.getsignal(signal.SIGINT)
    # A shell lets a process in the background ignore SIGINT. The handler is then SIG_IGN, which is not callable.
    if callable(before):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.buffer.read()
    finally:
        signal.signal(signal.SIGINT, before)

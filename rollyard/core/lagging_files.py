"""Files that another machine has just written into a shared folder.

Some shared file systems lag: a new file may be missing at first, empty, or there in part, although its writer made it
under another name and renamed it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

LAG_SECONDS, LAG_POLL_SECONDS = 30.0, 0.5
"""Longest wait for a file, and the time between two looks."""


def read_when_complete(read: Callable[[], T], what: str) -> T:
    """Return the first answer of `read` that is not an error. Blocks. `what`: the files, for the log.

    Raises the OSError or ValueError of `read` if there is still one after LAG_SECONDS.
    """
    deadline = time.monotonic() + LAG_SECONDS
    while True:
        try:
            return read()
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise
            log.warning("waiting for %s: %s", what, " ".join(str(error).split()))
            time.sleep(LAG_POLL_SECONDS)

"""One-time codes and cookies: how a browser proves that the person at the terminal opened it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable

CODE_SECONDS = 300.0
MAX_SESSIONS = 16
"""Browsers that are signed in at the same time. A further one signs the first one out."""
SECRET_BYTES = 32


class BrowserSessions:
    """The current code, and the cookies that were given for former codes. Secrets are compared by their hashes, in constant
    time."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: clock in seconds that never goes back."""
        self._now = now
        self._code: tuple[bytes, float] | None = None
        self._cookies: deque[bytes] = deque(maxlen=MAX_SESSIONS)
        self.cookie_name = f"rollyard_ui_{secrets.token_hex(4)}"
        """A browser sends cookies of one port of this machine to all its ports, so each proxy has a name of its own."""

    def new_code(self) -> str:
        """Make a code. The code before it is void."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        self._code = _digest(code), self._now() + CODE_SECONDS
        return code

    @property
    def has_code(self) -> bool:
        """Whether there is a code that was not used and has not expired."""
        return self._code is not None and self._now() < self._code[1]

    def exchange(self, code: str) -> str | None:
        """Return the value of a new cookie for the current code, which is void from then on; None for another code."""
        if not self.has_code or self._code is None or not hmac.compare_digest(_digest(code), self._code[0]):
            return None
        self._code = None
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._cookies.append(_digest(cookie))
        return cookie

    def is_signed_in(self, cookie_headers: list[str]) -> bool:
        """Return whether one of the cookies is ours. Another port of this machine may have added others of our name."""
        pairs = (pair.strip().partition("=") for header in cookie_headers for pair in header.split(";"))
        given = [_digest(value) for name, _, value in pairs if name == self.cookie_name]
        return any([hmac.compare_digest(one, own) for one in given for own in self._cookies])


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()

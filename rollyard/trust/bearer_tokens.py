"""Bearer tokens with claims and a signature. A token is checked without a look-up.

The form is `ry1.<claims>.<signature>`. The claims are JSON in base64url. The signature is the HMAC-SHA256 of
`ry1.<claims>`, also in base64url.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rollyard.core.errors import Unauthorized, Unavailable
from rollyard.trust.secret_files import write_secret

PREFIX = "ry1"
KEY_BYTES = 32


class Role(StrEnum):
    ADMIN = "admin"
    """A person or trainer, for all requests except those of node agents and engines. An admin can run any command on a
    pool's nodes, because an admin can write the pool."""
    NODE = "node"
    """A node agent, for its own allocation."""
    ENGINE = "engine"
    """An engine, for its own allocation."""
    ENDPOINT = "endpoint"
    """A caller of an engine's reverse proxy. The server does not accept this role."""
    SESSION = "session"
    """An external agent at the gateway, for its own session."""


@dataclass(frozen=True, slots=True)
class Claims:
    role: Role
    subject: str
    """The allocation's uid, the name of an admin, or `ID/INSTANCE` of a session."""


class TokenSigner:
    """Issues and verifies tokens with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES:
            raise ValueError(f"a key has at least {KEY_BYTES} bytes")
        self._key = key

    @classmethod
    def open(cls, path: Path) -> TokenSigner:
        """Open the key file, or create it if it is missing. Raises Unavailable if the file has no complete key."""
        if not path.exists():
            write_secret(path, secrets.token_bytes(KEY_BYTES))
        try:
            return cls(path.read_bytes())
        except ValueError as error:
            # An empty file would be an empty key, with which anyone could sign tokens.
            raise Unavailable(f"{path}: {error}. If you remove the file, all tokens become invalid") from None

    def issue(self, role: Role, subject: str, expires_at: float | None = None) -> str:
        """Issue a token. `expires_at` is in Unix seconds; None: the token does not expire."""
        claims = json.dumps([role.value, subject, expires_at], separators=(",", ":"))
        body = f"{PREFIX}.{_encode(claims.encode())}"
        return f"{body}.{_encode(self._signature(body))}"

    def verify(self, token: str, now: float) -> Claims:
        """Return the claims. Raises Unauthorized if the signature is wrong or the token has expired."""
        body, _, signature = token.rpartition(".")
        try:
            genuine = hmac.compare_digest(_decode(signature), self._signature(body))
        except ValueError:
            genuine = False
        if not genuine:
            raise Unauthorized(
                "this token is not valid for this server; admin.kubeconfig in the data folder has a valid one"
            )
        role, subject, expires_at = json.loads(_decode(body.removeprefix(f"{PREFIX}.")))
        if expires_at is not None and expires_at <= now:
            raise Unauthorized("this token has expired; ask for a new one")
        return Claims(Role(role), subject)

    def _signature(self, body: str) -> bytes:
        return hmac.digest(self._key, body.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii", "strict") + b"=" * (-len(text) % 4))

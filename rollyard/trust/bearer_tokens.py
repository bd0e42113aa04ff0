"""Bearer tokens with claims and a signature. A token is checked without a look-up.

A rotation makes a new key. Tokens of an earlier key stay valid for an overlap, in which their holders get new ones.

The form is `ry1.<claims>.<signature>`. The claims are JSON in base64url. The signature is the HMAC-SHA256 of
`ry1.<claims>`, also in base64url.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class EarlierKey:
    key: bytes
    until: float
    """Unix seconds up to which tokens of the key are valid."""


class TokenSigner:
    """Issues tokens with the present key. Verifies tokens of this key and, for their overlap, of earlier keys."""

    def __init__(self, key: bytes, earlier: Sequence[EarlierKey] = (), path: Path | None = None) -> None:
        """`path`: file of the present key. Without it the keys are not stored."""
        for each in (key, *(e.key for e in earlier)):
            if len(each) < KEY_BYTES:
                raise ValueError(f"a key has at least {KEY_BYTES} bytes")
        self._key, self._earlier, self._path = key, tuple(earlier), path

    @classmethod
    def open(cls, path: Path) -> TokenSigner:
        """Open the key files, or create them if they are missing. Raises Unavailable if a file has no complete key."""
        if not path.exists():
            write_secret(path, secrets.token_bytes(KEY_BYTES))
        before = _earlier_file(path)
        try:
            stored = json.loads(before.read_text()) if before.exists() else []
            earlier = [EarlierKey(bytes.fromhex(e["key"]), float(e["until"])) for e in stored]
            return cls(path.read_bytes(), earlier, path)
        except (ValueError, KeyError, TypeError) as error:
            # An empty file would be an empty key, with which anyone could sign tokens.
            raise Unavailable(f"{path}: {error}. If you remove the file, all tokens become invalid") from None

    def rotate(self, now: float, overlap_seconds: float) -> None:
        """Make a new key. Tokens of the present key stay valid for the overlap. Blocks.

        After a crash between the two writes the present key is still in use; it is then among the earlier ones too.
        """
        kept = [e for e in self._earlier if e.until > now and e.key != self._key]
        earlier = [*kept, EarlierKey(self._key, now + overlap_seconds)]
        key = secrets.token_bytes(KEY_BYTES)
        if self._path is not None:
            text = json.dumps([{"key": e.key.hex(), "until": e.until} for e in earlier])
            write_secret(_earlier_file(self._path), text)
            write_secret(self._path, key)
        self._key, self._earlier = key, tuple(earlier)

    def is_current(self, token: str) -> bool:
        """Whether the present key signed the token."""
        return self._key_of(token) == self._key

    def issue(self, role: Role, subject: str, expires_at: float | None = None) -> str:
        """Issue a token. `expires_at` is in Unix seconds; None: the token does not expire."""
        return _signed(self._key, role, subject, expires_at)

    def valid(self, role: Role, subject: str, now: float) -> list[str]:
        """Return all tokens of this holder without an expiry that are valid, the present one first."""
        earlier = (e.key for e in reversed(self._earlier) if e.until > now and e.key != self._key)
        return [_signed(key, role, subject, None) for key in (self._key, *earlier)]

    def verify(self, token: str, now: float) -> Claims:
        """Return the claims. Raises Unauthorized if the signature is wrong or the token has expired."""
        key, earlier = self._key_of(token), {e.key: e.until for e in self._earlier}
        if key is None:
            raise Unauthorized(
                "this token is not valid for this server; admin.kubeconfig in the data folder has a valid one"
            )
        if key != self._key and earlier[key] <= now:
            raise Unauthorized(
                "this token ended with a rotation of the server's tokens; admin.kubeconfig in the data folder has a valid one"
            )
        body = token.rpartition(".")[0]
        role, subject, expires_at = json.loads(_decode(body.removeprefix(f"{PREFIX}.")))
        if expires_at is not None and expires_at <= now:
            raise Unauthorized("this token has expired; ask for a new one")
        return Claims(Role(role), subject)

    def _key_of(self, token: str) -> bytes | None:
        """Return the key that signed a token; None if no key of this server did."""
        body, _, signature = token.rpartition(".")
        keys = (self._key, *(e.key for e in self._earlier))
        try:
            shown = _decode(signature)
            return next((key for key in keys if hmac.compare_digest(shown, _signature(key, body))), None)
        except ValueError:
            return None


def _earlier_file(path: Path) -> Path:
    return path.with_name("earlier-token-keys.json")


def _signed(key: bytes, role: Role, subject: str, expires_at: float | None) -> str:
    claims = json.dumps([role.value, subject, expires_at], separators=(",", ":"))
    body = f"{PREFIX}.{_encode(claims.encode())}"
    return f"{body}.{_encode(_signature(key, body))}"


def _signature(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii", "strict") + b"=" * (-len(text) % 4))

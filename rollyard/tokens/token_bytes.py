"""Bytes of single tokens. A token may be a part of a character, so its bytes are not always a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""Text to which an incomplete character is decoded."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Name of a token that is one byte, in tokenizers with byte fallback."""
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level tokenizers name by the character with the same number. The other bytes, in order, are named by
the characters from 256 on."""
BYTES_BY_CHARACTER = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}


class TokenBytes:
    """Finds the bytes of tokens, and remembers them."""

    def __init__(self, decode: Callable[[Sequence[int]], str], name: Callable[[int], str | None]) -> None:
        """`name`: returns a token's name in the tokenizer's vocabulary; None if the token has no name."""
        self._decode = decode
        self._name = name
        self._known: dict[int, bytes | None] = {}

    def of(self, token: int) -> bytes | None:
        """Return the bytes that a token has within a text; None if they cannot be found."""
        if token not in self._known:
            alone = self._decode([token])
            if REPLACEMENT in alone:
                self._known[token] = _bytes_of_name(self._name(token) or "")
            else:  # some tokenizers omit a space at the beginning of a text, so the token is decoded behind itself
                behind = self._decode([token, token])[len(alone) :]
                self._known[token] = behind.encode("utf-8", "replace")
        return self._known[token]


def _bytes_of_name(name: str) -> bytes | None:
    if found := BYTE_TOKEN.fullmatch(name):
        return bytes([int(found[1], 16)])
    known = [BYTES_BY_CHARACTER.get(character) for character in name]
    return bytes(byte for byte in known if byte is not None) if known and None not in known else None

"""Logprobs in the forms of OpenAI's APIs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from rollyard.gateway.requests.chat_request import TokenLogprob


def token_entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Build the entries of chat completions and responses."""
    return [
        {**_entry(one.data, one.logprob), "top_logprobs": [_entry(data, logprob) for data, logprob in one.likeliest]}
        for one in logprobs
    ]


class CompletionLogprobs:
    """Builds the object `logprobs` of text completions, whole or in pieces. A piece goes on from the one before it."""

    def __init__(self) -> None:
        self._offset = 0
        """Number of whole characters so far."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def part(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for one in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(one.data or b""))
        return {
            "tokens": [_text(one.data) for one in logprobs],
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": [_by_text(one) for one in logprobs],
            "text_offset": offsets,
        }


def _by_text(one: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the sampled one."""
    found: dict[str, float] = {}
    for data, logprob in (*one.likeliest, (one.data, one.logprob)):
        found.setdefault(_text(data), logprob)
    return found


def _entry(data: bytes | None, logprob: float) -> dict[str, Any]:
    return {"token": _text(data), "bytes": None if data is None else list(data), "logprob": logprob}


def _text(data: bytes | None) -> str:
    """Return a token's text. As in OpenAI's API, the text of a part of a character names its bytes."""
    if data is None:
        return "\ufffd"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

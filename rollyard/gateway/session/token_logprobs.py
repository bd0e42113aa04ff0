"""Logprobs of a turn's tokens for the caller, with the tokens' bytes."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.gateway.requests.chat_request import TokenLogprob
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled


def token_logprobs(template: ChatTemplate, sampled: Sampled) -> list[TokenLogprob]:
    """Return one entry for each sampled token, except tokens that end a turn."""
    likeliest = sampled.likeliest or [()] * len(sampled.token_ids)
    return [
        TokenLogprob(template.token_bytes.of(id), logprob, tuple((template.token_bytes.of(i), lp) for i, lp in top))
        for id, logprob, top in zip(sampled.token_ids, sampled.logprobs, likeliest, strict=True)
        if id not in template.stop_ids
    ]


def up_to_length(entries: Sequence[TokenLogprob], length: int) -> list[TokenLogprob]:
    """Return the entries of the tokens that begin within the first `length` bytes."""
    kept, size = [], 0
    for entry in entries:
        if size >= length:
            break
        kept.append(entry)
        size += len(entry.data or b"")
    return kept


class LogprobStream:
    """Holds the entries of a stream back until the text of their tokens can be sent."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._held: list[TokenLogprob] = []
        self._held_from = 0
        """Position of the first held token in bytes."""

    def feed(self, chunk: Sampled) -> None:
        self._held += token_logprobs(self._template, chunk)

    def take(self, length: int) -> list[TokenLogprob]:
        """Return the held entries of tokens that end within the first `length` bytes of the turn."""
        count = 0
        for entry in self._held:
            end = self._held_from + len(entry.data or b"")
            if end > length:
                break
            count, self._held_from = count + 1, end
        taken, self._held = self._held[:count], self._held[count:]
        return taken

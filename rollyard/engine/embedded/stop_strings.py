"""Text decoded token by token, and the stop strings that end it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """Decodes one sequence of tokens."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoding = DecodeStream(skip_special_tokens=skip_special_tokens)

    def add(self, token: int) -> str:
        """Return the text that this token completes; empty if the token ends in the middle of a character."""
        try:
            return self._decoding.step(self._tokenizer, token) or ""
        except Exception as error:  # the library has no narrower exception
            if "Invalid prefix" not in str(error):
                raise
            # With some decoders, a token may change the text before it. The stream then raises and cannot continue.
            self._decoding = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            return self._decoding.step(self._tokenizer, token) or ""


class StopStringMatcher:
    """Searches a sequence's text for stop strings."""

    def __init__(self, stops: Sequence[str], text: TextStream) -> None:
        """`stops`: at least one string, none of them empty."""
        self._stops = stops
        self._text = text
        self._longest = max(map(len, stops))
        self._tail = ""
        """The last characters of the text. They may be the beginning of a stop string."""

    def add(self, token: int) -> str | None:
        """Return the stop string that the token completes. If the token completes several, return the one that ends
        first, as in vLLM."""
        text = self._tail + self._text.add(token)
        self._tail = text[max(0, len(text) - self._longest + 1) :]
        found = [(text.find(stop) + len(stop), i) for i, stop in enumerate(self._stops) if stop in text]
        return self._stops[min(found)[1]] if found else None

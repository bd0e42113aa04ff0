"""Least number of tokens of a text, without its tokens. To tokenise a million characters takes a second and 300 MB, and a
text that is much longer than the context need not be tokenised to be refused."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from rollyard.core.errors import ContextExceeded

BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


class TokenLength:
    """Bound of a text's number of tokens."""

    def __init__(self, tokenizer: Any, fast: Any | None) -> None:
        """`tokenizer`: from transformers; `fast`: its Rust part, if it has one."""
        self._composes, self._longest = False, 0
        if fast is None or any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values()):
            return
        from tokenizers.pre_tokenizers import ByteLevel

        changes, words = _parts(fast.normalizer), _parts(fast.pre_tokenizer)
        vocabulary = fast.get_vocab()
        in_bytes = any(part["type"] == "ByteLevel" for part in (*changes, *words))
        every_byte = set(ByteLevel.alphabet()) if in_bytes else BYTE_TOKENS
        # else a word that the vocabulary lacks becomes one token, or none, however long it is
        knows_all = every_byte <= vocabulary.keys() and (in_bytes or getattr(fast.model, "byte_fallback", False))
        if knows_all and all(map(_keeps_length, changes)) and all(map(_keeps_text, words)):
            self._composes = any(part["type"] == "NFC" for part in changes)
            self._longest = max(map(len, vocabulary))  # a token of bytes has at least as many bytes as characters

    def least(self, text: str) -> int:
        """Return a number that the text's tokens certainly reach; 0 if the tokenizer may shorten a text by any length."""
        if not self._longest:
            return 0
        length = len(unicodedata.normalize("NFC", text)) if self._composes else len(text)
        return -(-length // self._longest)

    def check(self, text: str, context: int | None) -> None:
        """Raise ContextExceeded if the text certainly leaves no room for an answer in `context` tokens; None: unlimited."""
        least = self.least(text) if context is not None else 0
        if context is not None and least >= context:
            raise ContextExceeded(
                f"the conversation has at least {least} tokens, and the context {context}",
                context=context,
                tokens=least,
            )


def _parts(part: Any) -> list[dict[str, Any]]:
    """Describe a normalizer or pre-tokenizer, and each part of a sequence, by the fields of tokenizer.json."""
    return _flat(json.loads(part.__getstate__())) if part is not None else []


def _flat(part: dict[str, Any]) -> list[dict[str, Any]]:
    inner = part.get("normalizers") or part.get("pretokenizers") or []
    return [one for each in inner for one in _flat(each)] if part["type"] == "Sequence" else [part]


def _keeps_length(part: dict[str, Any]) -> bool:
    """Whether this normalizer leaves at least as many characters; NFC, which composes characters, is computed."""
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")
        return replaced is not None and len(part["content"]) >= len(replaced)
    return part["type"] in ("NFC", "Prepend", "ByteLevel")


def _keeps_text(part: dict[str, Any]) -> bool:
    return part["type"] in ("Split", "ByteLevel", "Metaspace", "Digits") and part.get("behavior") != "Removed"

"""Texts of single tokens, for people who read a trajectory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rollyard.core.errors import NotFound
from rollyard.tokens.token_bytes import TokenBytes

FILE = "tokenizer.json"
KEPT = 4
"""Number of tokenizers that stay in memory."""


@dataclass(frozen=True)
class TokenTexts:
    """Texts of tokens. An id that the tokenizer does not know is in neither mapping."""

    texts: dict[int, str]
    parts: dict[int, str]
    """Bytes of tokens that are a part of a character, in hexadecimal form."""


def token_texts(folder: str, ids: Iterable[int]) -> TokenTexts:
    """Return the texts of ids by the tokenizer of a model's folder. Blocks for up to a second. Raises NotFound."""
    found = TokenTexts({}, {})
    tokens = _tokens_of(folder)
    for id in ids:
        data = tokens.of(id)
        if data is None:
            continue
        try:
            found.texts[id] = data.decode()
        except UnicodeDecodeError:
            found.parts[id] = data.hex()
    return found


@lru_cache(KEPT)
def _tokens_of(folder: str) -> TokenBytes:
    from tokenizers import Tokenizer  # it takes a tenth of the time of transformers, which a chat template would need

    file = Path(folder) / FILE
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise NotFound(f"the server cannot read the tokenizer {file}: {error}; the ids are in the trajectory") from None
    return TokenBytes(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False), tokenizer.id_to_token)

"""A model's own tokenizer and chat template, through transformers (which needs no torch for it)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollyard.errors import Invalid, TaskError

Message = dict[str, Any]
"""`role` and `content`, and what else the template knows."""


class ChatTemplate:
    """Turns messages into text and text into ids."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        """`tokenizer` is a transformers tokenizer with a chat template."""
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        """What a fast tokenizer wraps: the same ids and texts at two thirds of the time."""
        if self._fast is not None:  # as its file may ask for
            self._fast.no_truncation()
            self._fast.no_padding()
        self.stop_ids = tuple(stop_ids)
        """Ids that end a turn; the first is the tokenizer's own."""

    @classmethod
    def load(cls, path: Path) -> ChatTemplate:
        """From a model folder in Hugging Face layout. Takes about a second. Raises Invalid when it will not do."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise Invalid(f"{path} holds no tokenizer that transformers can read: {error}") from None
        if not tokenizer.chat_template:
            raise Invalid(f"{path} has no chat template; add chat_template.jinja to the folder")
        try:
            return cls(tokenizer, _stop_ids(path, tokenizer.eos_token_id))
        except (OSError, ValueError, AttributeError) as error:
            raise Invalid(f"{path}/generation_config.json cannot be read: {error}") from None

    @property
    def source(self) -> str:
        """The template itself."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else json.dumps(template, ensure_ascii=False)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], add_generation_prompt: bool) -> str:
        """Raises TaskError when the template refuses the conversation."""
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except (
            TemplateError,
            TypeError,
        ) as error:  # a TypeError: what a template adds up or loops over is of another kind
            raise TaskError(f"the model's chat template refuses the conversation: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        """Ids of the text as it stands: nothing is put before or behind it."""
        if self._fast is not None:  # as a batch: one alone would keep the interpreter's lock
            ids: list[int] = self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """For people and parsers. What it gives must never be encoded again."""
        if self._fast is not None:
            text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special)
        else:
            text = self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return text


def _stop_ids(path: Path, eos: int | None) -> list[int]:
    """The tokenizer's own end and those that the engine takes from generation_config.json."""
    file = path / "generation_config.json"
    more = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
    ids = [eos, *(more if isinstance(more, list) else [more])]
    return list(dict.fromkeys(i for i in ids if i is not None))

"""A model's own tokenizer and chat template. Both are loaded through transformers; torch is not needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.template_fields import fields_of
from rollyard.tokens.template_roles import ends_turns, in_channels, in_parts, roles_in_parts
from rollyard.tokens.token_bytes import TokenBytes
from rollyard.tokens.token_length import TokenLength

Message = dict[str, Any]
"""Message with `role`, `content` and further fields that the template uses."""


class ChatTemplate:
    """Renders messages as text and tokenises text."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        """`tokenizer`: from transformers, with a chat template. Raises TemplateUnusable."""
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        """Rust part of a fast tokenizer. It gives the same ids and texts as the tokenizer in two thirds of the time."""
        if self._fast is not None:  # the tokenizer's file may have enabled truncation or padding
            self._fast.no_truncation()
            self._fast.no_padding()
        self.token_length = TokenLength(tokenizer, self._fast)
        """Bound of a text's number of tokens."""
        self.stop_ids = tuple(stop_ids)
        """Ids of tokens that end a turn. The first id is the tokenizer's own `eos_token_id`, if it has one."""
        added = tokenizer.added_tokens_decoder
        self.ends = {i: added[i].content if i in added else self.decode([i]) for i in self.stop_ids}
        """Stop id -> text of its token."""
        self._parts = roles_in_parts(self._rendered)
        self.fields = fields_of(self._rendered, self._parts, self.ends.values(), self.source)
        """Fields of a message that the template reads, and their forms."""
        self._check_end()

    @classmethod
    def load(cls, folder: Path, model: Path | None = None) -> ChatTemplate:
        """Load tokenizer and template from a folder in Hugging Face layout. This takes about a second.

        `model`: folder with the model's config.json; default: `folder`. Raises TemplateUnusable if tokenizer or template
        is unusable.
        """
        try:
            tokenizer = _tokenizer(folder)
            _check_size(tokenizer, model or folder)
            return cls(tokenizer, _stop_ids(folder, tokenizer.eos_token_id))
        except TemplateUnusable as error:
            raise TemplateUnusable(f"TemplateUnusable: the chat template {error} ({folder})") from None

    @property
    def source(self) -> str:
        """Source text of the template."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else json.dumps(template, ensure_ascii=False)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """Bytes of single tokens."""
        return TokenBytes(self.decode, self._tokenizer.convert_ids_to_tokens)

    @cached_property
    def exact(self) -> bool:
        """Whether encoding and decoding return a text unchanged, also if the text begins with a stop token."""
        text = "".join([*self.ends.values()][:1]) + "a b"
        return self.decode(self.encode(text)) == text

    @cached_property
    def in_channels(self) -> bool:
        """Whether the template writes a turn as messages in channels (gpt-oss)."""
        return in_channels(self._rendered, self._parts)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], add_generation_prompt: bool) -> str:
        """Render the messages. Their contents are text; some templates get this text as a list of parts.

        An assistant's message may have `reasoning_content` and `tool_calls`, with objects as arguments. The template gets
        them in the form that it reads.

        Raises TaskError if the template refuses the conversation (`raise_exception`) or would leave out a call or a
        result, and TemplateUnusable if the template fails.
        """
        messages, tools = self.fields.shaped(messages), self.fields.shaped_tools(tools)
        if self._parts:
            messages = [in_parts(m) if m["role"] in self._parts else m for m in messages]
        try:
            return self._rendered(messages, tools, add_generation_prompt)
        except TemplateUnusable as error:
            raise TemplateUnusable(f"TemplateUnusable: the model's chat template fails: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Tokenise exactly this text. No special token is added at its beginning or end."""
        if self._fast is not None:  # the Rust tokenizer's `encode` would hold the interpreter lock
            ids: list[int] = self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_behind(self, last: int | None, text: str) -> list[int]:
        """Tokenise a text that follows the id `last`. `last` is None if no id precedes the text.

        Some tokenizers treat the start of a text, or a space after a special token, in a special way. To get the ids that
        the text has within the conversation, a stop token is put before the text, and its id is removed afterwards.
        """
        front = last if last in self.stop_ids else next(iter(self.stop_ids), None)
        if text and last is not None and front is not None and (front == last or self._has_start_ids):
            ids = self.encode(self.ends[front] + text)
            if ids[:1] == [front]:
                return ids[1:]
        return self.encode(text)

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Decode ids to a text. If this text is tokenised again, the result may differ from these ids."""
        if self._fast is not None:
            text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special)
        else:
            text = self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return text

    @cached_property
    def _has_start_ids(self) -> bool:
        """Whether a text that stands alone gets other ids than the same text after a stop token."""
        return self.encode(self.ends[self.stop_ids[0]] + "a")[1:] != self.encode("a")

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], add_generation_prompt: bool
    ) -> str:
        from jinja2 import TemplateError, TemplateSyntaxError
        from jinja2.exceptions import SecurityError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except TemplateSyntaxError as error:
            raise TemplateUnusable(f"line {error.lineno}: {error.message}") from None
        except SecurityError as error:
            raise TemplateUnusable(
                f"{error} transformers lets no template change an object: write `x = x + [item]` for `x.append(item)`"
            ) from None
        # TypeError and others: messages may contain anything, and the template may use a value of a wrong type
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ) as e:
            if type(e) is TemplateError:  # from raise_exception in the template
                raise TaskError(f"the model's chat template refuses the conversation: {e}") from None
            raise TemplateUnusable(f"{type(e).__name__}: {e}") from None
        return text

    def _check_end(self) -> None:
        ends = [text for text in self.ends.values() if text]
        if not ends:
            raise TemplateUnusable(
                "has no token that ends a turn; name one as eos_token in tokenizer_config.json or as eos_token_id in "
                "generation_config.json"
            )
        if not ends_turns(self._rendered, self._parts, ends):
            raise TemplateUnusable(
                f"never ends a turn with {' or '.join(ends)}, so that no turn would end; name the token that it ends turns "
                "with as eos_token in tokenizer_config.json or as eos_token_id in generation_config.json"
            )


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises nothing narrower for a file that it cannot read
        raise TemplateUnusable(f"has no tokenizer that transformers can read: {error}") from None
    if not tokenizer.chat_template:
        raise TemplateUnusable("is missing; add chat_template.jinja to the folder")
    return tokenizer


def _check_size(tokenizer: Any, model: Path) -> None:
    """Raise TemplateUnusable if the tokenizer has an id for which the model has no embedding."""
    try:
        config = json.loads((model / "config.json").read_text())
        rows = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return  # the engine reports an unusable config.json
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if isinstance(rows, int) and largest >= rows:
        raise TemplateUnusable(
            f"has a tokenizer larger than the model: {token!r} is {largest}, but {model}/config.json has "
            f"vocab_size {rows}; use the model's own tokenizer, or one without the added tokens"
        )


def _stop_ids(folder: Path, eos: int | None) -> list[int]:
    """Return the tokenizer's own stop id, and the stop ids that the engine reads from generation_config.json."""
    file = folder / "generation_config.json"
    try:
        more = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
    except (OSError, ValueError, AttributeError) as error:
        raise TemplateUnusable(f"has a generation_config.json that cannot be read: {error}") from None
    ids = [eos, *(more if isinstance(more, list) else [more])]
    return list(dict.fromkeys(i for i in ids if isinstance(i, int)))

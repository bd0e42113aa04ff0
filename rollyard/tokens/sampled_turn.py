"""One sampled turn, as ids and as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_bytes import REPLACEMENT

THINK_ENDS = "</think>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
RECIPIENT = ">>>"
"""Functionary's mark before the name of a tool, or before `all` and an answer."""
FINAL_RESPONSE = "[BEGIN FINAL RESPONSE]"
"""Line between Apriel's thoughts and its answer."""
OPENS = r"<think>|<seed:think>|\[THINK\]|<\|START_THINKING\|>|<\|inner_prefix\|>"
CLOSES = r"</think>|</seed:think>|\[/THINK\]|<\|END_THINKING\|>|<\|inner_suffix\|>|<channel\|>"
OPENED = re.compile(rf"({OPENS}|(?<=<\|end_header_id\|>\n\n){RECIPIENT})\s*$")
"""Marker at the end of a prompt that belongs to the turn: it opens thoughts, or a call or an answer."""
CLOSED = re.compile(rf"{re.escape(FINAL_RESPONSE)}|{CLOSES}|<\|end\|><\|start\|>assistant")
"""Marker after thoughts."""
EMPTY_THOUGHTS = re.compile(rf"(?:{OPENS}|<\|channel>thought)?\s*(?:{CLOSES})\s*")
"""Thoughts without text. Some templates write them where they leave thoughts out."""
OPENED_TAIL = 32
"""Number of ids at the end of a prompt that may have such a marker."""
TAIL = 4
"""A turn is decoded together with this many ids from the end of its prompt."""


@dataclass(frozen=True)
class SampledTurn:
    ids: list[int]
    text: str
    """Text of the turn without the token that ended it. The template gets this text as the content of a message."""
    end: str
    """Text of the token that ended the turn; empty if a limit ended the turn."""
    spellings: tuple[str, ...]
    """Possible texts of the turn within a rendering. There may be two, because some tokenizers omit a space at the
    beginning of a text. Empty if the turn begins or ends within a character, so that its text depends on the ids
    around it."""
    opened: str = ""
    """Marker at the end of the prompt that opened the turn's thoughts (`<think>`), its call or its answer (`>>>`); empty if
    the prompt opened none."""

    @property
    def content_ids(self) -> list[int]:
        """Ids of the turn without the id that ended it."""
        return self.ids[:-1] if self.end else self.ids

    def text_after(self, thoughts: str) -> str | None:
        """Return the text after the thoughts and their marker; None if they are not found."""
        start = self.text.find(thoughts)
        closed = CLOSED.search(self.text, start + len(thoughts)) if start >= 0 else None
        return self.text[closed.end() :] if closed is not None else None

    def index_of_ending(self, template: ChatTemplate, ending: str) -> int | None:
        """Return the index of the id with which a text at the end of the turn begins; None if it begins within an id."""
        before = self.text[: len(self.text) - len(ending)]
        low, high = 0, len(self.content_ids)
        while low < high:
            middle = (low + high) // 2
            if len(template.decode(self.ids[:middle])) >= len(before):
                high = middle
            else:
                low = middle + 1
        return low if template.decode(self.ids[:low]) == before else None


def sampled_turn(template: ChatTemplate, ids: Sequence[int], prompt: Sequence[int] = ()) -> SampledTurn:
    """Make a turn from ids that were sampled after a prompt. The turn keeps these ids."""
    ended = bool(ids) and ids[-1] in template.stop_ids
    content = list(ids[:-1] if ended else ids)
    text, end = template.decode(content), template.ends[ids[-1]] if ended else ""
    stands = end or not text.endswith(REPLACEMENT) or _is_stable(template, content, text)
    spellings = _spellings(template, content, text, prompt[-TAIL:]) if stands else ()
    opened = OPENED.search(template.decode(prompt[-OPENED_TAIL:]))
    return SampledTurn(list(ids), text, end, spellings, opened[1] if opened else "")


def _is_stable(template: ChatTemplate, content: Sequence[int], text: str) -> bool:
    """Return whether an incomplete character at the end decodes to the same text if another byte follows.

    It may decode to another text if the tokenizer has tokens for single bytes.
    """
    byte = "\x01"
    return (
        template.decode([*content, *template.encode_behind(next(iter(template.stop_ids), None), byte)]) == text + byte
    )


def _spellings(template: ChatTemplate, content: Sequence[int], text: str, tail: Sequence[int]) -> tuple[str, ...]:
    """Return the possible texts of a turn: decoded together with the last ids of its prompt, and decoded alone.

    The second text is needed only for a tokenizer that does not return texts unchanged.
    """
    before, together = template.decode(tail), template.decode([*tail, *content])
    if not together.startswith(before):
        return () if template.exact else (text,)
    behind = together[len(before) :]
    return (behind,) if behind == text or template.exact else (behind, text)

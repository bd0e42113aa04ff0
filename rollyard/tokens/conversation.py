"""A conversation as token ids. Sampled ids are canonical; only the text around them is ever tokenised.

Each time the whole conversation is rendered with a placeholder for every sampled turn. The rendered text, cut at the
placeholders, shows whether the template left the earlier parts as they were. If so, just the new part is tokenised and
appended. If not, the prefix is broken: a new segment opens with the parts tokenised as they now stand and the sampled
ids in their places, and the break is counted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollyard.kinds.rollout import Segment
from rollyard.tokens.template import ChatTemplate, Message


class Cause(StrEnum):
    """Why a prefix broke."""

    TEMPLATE_REWROTE = "TemplateRewrote"
    """The text before or between sampled turns came out differently."""
    TURN_DROPPED = "TurnDropped"
    """A sampled turn is gone, repeated or elsewhere."""


@dataclass(frozen=True)
class Break:
    turn: int
    """Number of the turn that the new segment opens for, from 0."""
    cause: Cause


@dataclass(frozen=True)
class _Rendering:
    """The conversation's text, cut at the sampled turns: texts[i] stands before turns[i], texts[-1] behind them all."""

    texts: list[str]
    turns: list[int]


@dataclass
class _Track:
    """A segment under way: everything up to the last sampled token."""

    texts: list[str] = field(default_factory=list)
    """As rendered, before each of `turns`."""
    turns: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    weights_version: list[str | None] = field(default_factory=list)
    prompt_length: int | None = None
    """Known from the first sampled turn on."""
    finish_reasons: list[str] = field(default_factory=list)

    def extends_to(self, rendering: _Rendering) -> bool:
        """White space right before a turn is no difference: templates without a generation prompt (Mistral's) put some
        there that was the model's to sample."""
        then = [text.rstrip() for text in self.texts]
        return self.turns == rendering.turns and then == [text.rstrip() for text in rendering.texts[:-1]]

    def append_prompt(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.logprobs += [None] * len(ids)
        self.weights_version += [None] * len(ids)

    def segment(self, prompt_length: int) -> Segment:
        return Segment(
            token_ids=list(self.ids),
            loss_mask=[int(logprob is not None) for logprob in self.logprobs],
            logprobs=list(self.logprobs),
            weights_version=list(self.weights_version),
            prompt_length=prompt_length,
            extras={"finish_reasons": list(self.finish_reasons)},
        )


class Conversation:
    """Messages go in as text, turns as ids; what comes out is the next prompt, and in the end the segments."""

    def __init__(
        self, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.breaks: list[Break] = []
        self._template = template
        self._messages = list(messages)
        self._tools = list(tools)
        self._sampled: list[list[int]] = []
        self._tracks = [_Track()]
        self._rendering: _Rendering | None = None
        self._pending: list[int] = []
        """Ids of the last text: part of the next prompt, of a segment only once a turn is sampled behind them."""
        # letters and digits alone, so that no template trims, escapes or splits it
        self._nonce = f"sampled{secrets.token_hex(8)}turn"
        self._placeholder = re.compile(rf"{self._nonce}(\d+)end")

    def prompt_ids(self) -> list[int]:
        """Ids for the next model call. Raises TaskError when the template refuses the conversation."""
        if self._rendering is None:
            self._rendering = self._render()
            if not self._tracks[-1].extends_to(self._rendering):
                self._open_track(self._rendering)
            self._pending = self._encode(self._rendering, len(self._rendering.turns))
        return self._tracks[-1].ids + self._pending

    def add_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], weights_version: str | Sequence[str], finish_reason: str
    ) -> str:
        """Append what the model answered to `prompt_ids()`; gives its text without the token that ended it.

        `weights_version` is one for all or one a token. Raises ValueError when the lengths differ.
        """
        versions = [weights_version] * len(ids) if isinstance(weights_version, str) else list(weights_version)
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} ids, {len(logprobs)} logprobs and {len(versions)} versions: one each")
        prompt_length = len(self.prompt_ids())
        rendering, self._rendering = self._rendering or self._render(), None
        track = self._tracks[-1]
        track.append_prompt(self._pending)
        track.texts.append(rendering.texts[-1])
        track.turns.append(len(self._sampled))
        track.ids += ids
        track.logprobs += logprobs
        track.weights_version += versions
        track.finish_reasons.append(finish_reason)
        if track.prompt_length is None:
            track.prompt_length = prompt_length
        self._messages.append({"role": "assistant", "content": f"{self._nonce}{len(self._sampled)}end"})
        self._sampled.append(list(ids))
        ended = bool(ids) and ids[-1] in self._template.stop_ids
        return self._template.decode(ids[:-1] if ended else ids)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Tool results, or what a user says."""
        self._messages += messages
        self._rendering = None

    def segments(self) -> list[Segment]:
        """One for each unbroken sequence, up to its last sampled token."""
        return [track.segment(track.prompt_length) for track in self._tracks if track.prompt_length is not None]

    def _render(self) -> _Rendering:
        pieces = self._placeholder.split(self._template.render(self._messages, self._tools, True))
        return _Rendering(texts=pieces[0::2], turns=[int(number) for number in pieces[1::2]])

    def _open_track(self, rendering: _Rendering) -> None:
        old = self._tracks[-1]
        cause = Cause.TEMPLATE_REWROTE if old.turns == rendering.turns else Cause.TURN_DROPPED
        self.breaks.append(Break(len(self._sampled), cause))
        track = _Track(texts=rendering.texts[:-1], turns=list(rendering.turns))
        for i, turn in enumerate(rendering.turns):
            # these were sampled behind another prefix, where they are trained on; here they are context
            track.append_prompt(self._encode(rendering, i))
            track.append_prompt(self._sampled[turn])
        self._tracks.append(track)

    def _encode(self, rendering: _Rendering, i: int) -> list[int]:
        """Ids of texts[i]. The template closes every turn; a turn that closed itself is not closed twice.

        The text is tokenised with its closing token and that one is taken off afterwards, so that a tokenizer which
        treats the start of a text differently sees the same boundary as in the whole.
        """
        ids = self._template.encode(rendering.texts[i])
        before = self._sampled[rendering.turns[i - 1]] if i else []
        if before and before[-1] in self._template.stop_ids and ids[:1] == before[-1:]:
            return ids[1:]
        return ids

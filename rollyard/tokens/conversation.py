"""A conversation as token ids. Sampled ids are canonical; only the text around them is ever tokenised.

Each time the whole conversation is rendered with a placeholder for every sampled turn. The rendered text, cut at the
placeholders, shows whether the template left the earlier parts as they were. If so, just the new part is tokenised and
appended. If not, the prefix is broken: a new segment opens with the parts tokenised as they now stand and the sampled
ids in their places, and the break is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.kinds.rollout import Segment
from rollyard.tokens.rendering import Answer, Renderer, Rendering
from rollyard.tokens.template import ChatTemplate, Message
from rollyard.tokens.tool_calls import ToolCall
from rollyard.tokens.track import Break, Cause, Placed, Track, shown_whole, text_before
from rollyard.tokens.turn import SampledTurn, sampled_turn

__all__ = ["Break", "Cause", "Conversation"]


class Conversation:
    """Messages go in as text, turns as ids; what comes out is the next prompt, and in the end the segments."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        opened_by: Break | None = None,
    ) -> None:
        """`opened_by`: why this is not the continuation of another conversation; counted in `breaks`."""
        self.breaks: list[Break] = [opened_by] if opened_by is not None else []
        self._template = template
        self._renderer = Renderer(template, tools)
        self._messages: list[Message | Answer] = list(messages)
        self._sampled: list[SampledTurn] = []
        self._tracks = [Track(opened_by=opened_by)]
        self._settled = 0
        """So many of the messages end with the last turn; what comes behind it may still be replaced."""
        self._rendering: Rendering | None = None
        self._pending: list[int] = []
        """Ids of the last text: part of the next prompt, of a segment only once a turn is sampled behind them."""

    @property
    def segment_count(self) -> int:
        return sum(track.prompt_length is not None for track in self._tracks)

    @property
    def token_count(self) -> int:
        """Of all segments together."""
        return sum(len(track.ids) for track in self._tracks)

    def prompt_ids(self) -> list[int]:
        """Ids for the next model call. Raises TaskError when the template refuses the conversation."""
        if self._rendering is None:
            rendering = self._renderer.render(self._messages)
            difference = self._tracks[-1].difference(rendering, self._sampled)
            if difference is not None:
                self._open_track(rendering, Break(len(self._sampled), *difference))
            self._pending = self._closing(rendering.texts[-1], new=difference is not None)
            self._rendering = rendering
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
        rendering, self._rendering = self._rendering, None
        assert rendering is not None
        track, number = self._tracks[-1], len(self._sampled)
        turn = sampled_turn(self._template, ids, rendering.texts[-1])
        track.append_prompt(self._pending)
        track.texts.append(rendering.texts[-1])
        track.turns.append(Placed(number, True))
        track.ids += ids
        track.logprobs += logprobs
        track.weights_version += versions
        track.finish_reasons.append(finish_reason)
        if track.prompt_length is None:
            track.prompt_length = prompt_length
        self._append(turn, ())
        return turn.text

    @property
    def last(self) -> Answer:
        """The turn sampled or recalled last; to be recalled in another conversation. Raises IndexError before any."""
        answer = self._messages[self._settled - 1] if self._settled else None
        if not isinstance(answer, Answer):
            raise IndexError("nothing was sampled yet")
        return answer

    def add_recalled(self, answer: Answer) -> None:
        """A turn that was sampled in another conversation, before any of this one: its ids stand here as context."""
        self._append(answer.turn, answer.calls)
        self._rendering = None

    def replace_unanswered(self, messages: Sequence[Message]) -> None:
        """Put these messages behind the last turn, in place of any that are there."""
        if len(self._tracks) > 1 and self._tracks[-1].prompt_length is None:
            # opened for a prompt that was never answered
            self._tracks.pop()
            self.breaks.pop()
        self._messages[self._settled :] = messages
        self._rendering = None

    def add_messages(self, messages: Sequence[Message]) -> None:
        """What a user says, or anything else that is no answer to a call."""
        self._messages += messages
        self._rendering = None

    def add_results(self, calls: Sequence[ToolCall], results: Sequence[str]) -> None:
        """One result for each call of the turn sampled last, in the same order."""
        answer = self._messages[-1]
        if not isinstance(answer, Answer) or len(calls) != len(results):
            raise ValueError("results follow a sampled turn, one for each of its calls")
        answer.calls = tuple(calls)
        ids = answer.call_ids()
        self.add_messages(
            [
                {"role": "tool", "name": call.name, "tool_call_id": id, "content": result}
                for call, id, result in zip(calls, ids, results, strict=True)
            ]
        )

    def segments(self) -> list[Segment]:
        """One for each unbroken sequence, up to its last sampled token."""
        return [track.segment(track.prompt_length) for track in self._tracks if track.prompt_length is not None]

    def _append(self, turn: SampledTurn, calls: Sequence[ToolCall]) -> None:
        self._messages.append(Answer(len(self._sampled), turn, tuple(calls)))
        self._sampled.append(turn)
        self._settled = len(self._messages)

    def _open_track(self, rendering: Rendering, broken: Break) -> None:
        if self._tracks[-1].prompt_length is None:  # nothing was sampled on it, so nothing breaks
            self._tracks[-1] = Track(opened_by=self._tracks[-1].opened_by)
        else:
            self.breaks.append(broken)
            self._tracks.append(Track(opened_by=broken))
        track = self._tracks[-1]
        for seen, rendered in zip(rendering.turns, rendering.texts, strict=False):
            turn = self._sampled[seen.number]
            text, whole = text_before(rendered, seen, turn), shown_whole(seen, turn)
            # these were sampled behind another prefix, where they are trained on; here they are context
            track.append_prompt(self._closing(text, new=True))
            track.append_prompt(turn.shown(whole)[0])
            track.texts.append(text)
            track.turns.append(Placed(seen.number, whole))

    def _closing(self, text: str, *, new: bool) -> list[int]:
        """Ids of the text behind the last turn. The template closes every turn; one that closed itself is not closed
        twice. In a new segment the end is the template's, where that is another.

        The text is tokenised with its closing token and that one is taken off afterwards, so that a tokenizer which
        treats the start of a text differently sees the same boundary as in the whole.
        """
        track, ids = self._tracks[-1], self._template.encode(text)
        last = track.turns[-1] if track.turns else None
        said = self._sampled[last.number].shown(last.whole)[0] if last else []
        if not said or said[-1] not in self._template.stop_ids:
            return ids
        if ids[:1] == said[-1:]:
            return ids[1:]
        if new:
            track.drop_last()
        return ids

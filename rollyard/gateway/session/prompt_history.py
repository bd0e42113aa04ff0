"""The history of prompts without messages (`/v1/completions`): a tree as in `chat_to_ids`. The beginning of a prompt
decides which branch the prompt continues.

A prompt of ids continues the longest free branch whose ids are the beginning of the prompt. For a prompt of text the
branch's text decides, and only the rest of the prompt is tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollyard.gateway.session.chat_to_ids import QUOTED, common_length
from rollyard.gateway.session.stored_call import StoredPrompt
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.segment_builder import Break, BreakCause, SegmentBuilder
from rollyard.trajectory import Segment, Turn


@dataclass(eq=False)
class PromptBranch:
    opened_by: Break | None
    track: SegmentBuilder = field(default_factory=SegmentBuilder)
    text: str = ""
    """Text of the branch's ids."""
    first: int = 0
    """Length of the first prompt in characters."""
    busy: bool = True
    turns: list[Turn] = field(default_factory=list)

    @property
    def segment_count(self) -> int:
        return 1

    @property
    def token_count(self) -> int:
        return len(self.track.ids)

    @property
    def breaks(self) -> Sequence[Break]:
        return [self.opened_by] if self.opened_by is not None else []

    def segments(self) -> list[Segment]:
        assert self.track.prompt_length is not None
        return [self.track.segment(self.track.prompt_length)]


@dataclass(frozen=True)
class PreparedPrompt:
    branch: PromptBranch
    prompt: list[int]
    text: str

    @property
    def request_key(self) -> str:
        """Text that is the same for each repetition of the call."""
        return self.text


class PromptHistory:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.branches: list[PromptBranch] = []

    def request_key(self, prompt: str | Sequence[int]) -> str:
        """Return the `PreparedPrompt.request_key` that the call would have."""
        return prompt if isinstance(prompt, str) else self._template.decode(prompt)

    def prepare(self, prompt: str | Sequence[int], context: int | None = None) -> PreparedPrompt:
        """Find or open the branch. The branch is busy until `record` or `release`. Raises ContextExceeded if a text cannot
        fit into `context` tokens."""
        free = [b for b in self.branches if not b.busy]
        if isinstance(prompt, str):
            self._template.token_length.check(prompt, context)
            text = prompt
            found = max((b for b in free if text.startswith(b.text)), key=lambda b: len(b.text), default=None)
            begin, new = (found.track.ids, text[len(found.text) :]) if found else ([], text)
            ids = begin + self._template.encode(new)
        else:
            ids = list(prompt)
            going_on = (b for b in free if ids[: len(b.track.ids)] == b.track.ids)
            found = max(going_on, key=lambda b: len(b.track.ids), default=None)
            text = self._template.decode(ids)
        if found is None:
            opened_by = self._why_no_branch(text)
            found = PromptBranch(opened_by, SegmentBuilder(opened_by=opened_by), first=len(text))
        found.busy = True
        return PreparedPrompt(found, ids, text)

    def restore(self, call: StoredPrompt) -> PreparedPrompt:
        """Prepare a call again on the branch that the call had. The calls before it must have been restored and recorded."""
        if call.branch is not None:
            branch = self.branches[call.branch]
        else:
            why = Break(call.why[0], BreakCause(call.why[1]), call.why[2]) if call.why is not None else None
            branch = PromptBranch(why, SegmentBuilder(opened_by=why), first=len(call.text))
        branch.busy = True
        return PreparedPrompt(branch, branch.track.ids + call.new_ids, branch.text[: call.kept_text] + call.text)

    def describe(self, prepared: PreparedPrompt) -> StoredPrompt:
        """Describe a call for `restore`. Call this before `record`."""
        branch, why = prepared.branch, prepared.branch.opened_by
        number = self.branches.index(branch) if branch in self.branches else None
        told = (why.turn, str(why.cause), why.why) if number is None and why is not None else None
        # the text of a prompt of ids need not begin with the branch's text: characters may span the ids of two prompts
        kept = len(branch.text) if prepared.text.startswith(branch.text) else 0
        return StoredPrompt(number, prepared.prompt[len(branch.track.ids) :], kept, prepared.text[kept:], told)

    def _why_no_branch(self, text: str) -> Break | None:
        """Return why no branch matches a prompt. None if the prompt does not begin with the first prompt of a branch,
        or if the whole prompt is the beginning of a branch."""
        near = max(self.branches, key=lambda b: common_length(b.text, text), default=None)
        common = common_length(near.text, text) if near is not None else 0
        if near is None or not near.first <= common < len(text):
            return None
        turn, old, new = sum(len(b.turns) for b in self.branches), near.text[common:], text[common:]
        what = f"has {new[:QUOTED]!r}, but had {old[:QUOTED]!r}" if old else "continues while another call does"
        return Break(turn, BreakCause.HISTORY_CHANGED, f"turn {turn}: the prompt's character {common + 1} {what}")

    def record(self, prepared: PreparedPrompt, sampled: Sampled, text: str) -> None:
        """Record a continuation. `text`: the text of all sampled ids."""
        branch, track = prepared.branch, prepared.branch.track
        track.append_prompt(prepared.prompt[len(track.ids) :])
        if track.prompt_length is None:
            track.prompt_length = len(prepared.prompt)
        track.ids += sampled.token_ids
        track.logprobs += sampled.logprobs
        track.weights_version += sampled.weights_versions
        track.finish_reasons.append(sampled.finish_reason)
        branch.text = prepared.text + text
        if branch not in self.branches:
            self.branches.append(branch)
        branch.busy = False

    def siblings(self, prepared: PreparedPrompt, count: int) -> list[PreparedPrompt]:
        """Return further calls with the same prompt, each on a branch of its own, which exists from `record` on."""
        return [replace(prepared, branch=PromptBranch(None, first=prepared.branch.first)) for _ in range(count)]

    def release(self, prepared: PreparedPrompt) -> None:
        prepared.branch.busy = False

"""The conversation of a rollout that goes on from a turn of another rollout."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.core.errors import SnapshotUnusable
from rollyard.kinds.rollout import ForkPoint
from rollyard.node.agent_loop import AgentProgress
from rollyard.trajectory import Outcome, Segment, Turn


def go_on_from(run: AgentProgress, ancestors: Sequence[tuple[ForkPoint, Outcome]]) -> None:
    """Repeat the turns of the ancestors in the conversation, the first ancestor first. Their sampled ids become context: in
    this rollout they have a loss mask of 0.

    Raises SnapshotUnusable if a prompt would have other ids than in the ancestor, or if its last turn ended the
    conversation. Raises TaskError or TemplateUnusable if the chat template fails.
    """
    for point, outcome in ancestors:
        if point.turn > len(outcome.turns):
            raise SnapshotUnusable(
                f"rollout {point.rollout!r} has only {len(outcome.turns)} turns; {point.turn} was asked for"
            )
        for number, turn in enumerate(outcome.turns[: point.turn], start=1):
            _repeat(run, turn, outcome.segments[turn.segment], f"turn {number} of rollout {point.rollout!r}")
        run.conversation.prompt_ids()
        run.conversation = run.conversation.sibling()


def _repeat(run: AgentProgress, turn: Turn, segment: Segment, name: str) -> None:
    start, end = turn.prompt_length, turn.prompt_length + turn.response_length
    if run.conversation.prompt_ids() != segment.token_ids[:start]:
        raise SnapshotUnusable(
            f"the prompt of {name} would have other tokens now: the tokenizer, the chat template, the tools or the task's "
            "prompt have changed since; begin with a rollout of its own"
        )
    ids = segment.token_ids[start:end]
    run.conversation.add_sampled(ids, [0.0] * len(ids), "", turn.finish_reason)
    parsed = run.conversation.last.parsed
    if turn.finish_reason == "length" or (not parsed.calls and parsed.error is None):
        raise SnapshotUnusable(f"{name} ended the conversation; fork from an earlier turn")
    calls = len(parsed.calls)
    if len(turn.tool_results) not in (calls, calls + 1):
        raise SnapshotUnusable(f"the tool calls of {name} are read in another way now; begin with a rollout of its own")
    run.conversation.add_results(turn.tool_results[:calls])
    if len(turn.tool_results) > calls:
        run.conversation.add_messages([{"role": run.conversation.error_role, "content": turn.tool_results[-1]}])

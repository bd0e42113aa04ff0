"""Saved turns of a rollout in a new sandbox: the conversation is made again as it was, and the tool calls are run again.

A turn's sampled ids stay as they are if its prompt has the same ids as before. The results of its calls must be the same
(`same_result.py`). A call whose result differs has already changed the sandbox. So its turn keeps its ids and gets the new
results, and only the turns after it are dropped: in this way the sandbox has the effects of the conversation's calls, and of
no others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from rollyard.core.errors import ResumeFailed
from rollyard.core.failpoints import failpoint
from rollyard.kinds.base import evolve
from rollyard.node.agent_loop import (
    AgentProgress,
    ResultTexts,
    append_results,
    calls_of,
    failed_calls,
    prompt_ids_of,
    result_texts,
    results_of,
)
from rollyard.node.same_result import same
from rollyard.node.snapshot_cost import loses_state, not_repeatable
from rollyard.node.tool_execution import Tools
from rollyard.tasks.own_tools import ToolResult
from rollyard.trajectory import SavedTurn, Turn
from rollyard.trajectory.saved_turn import prompt_digest


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of playing saved turns again."""

    kept: int
    """Number of turns that the conversation has now."""
    replayed: int = 0
    """Number of turns whose calls were run again."""
    why: str | None = None
    """Why the turns after them were dropped; None if all were kept."""
    changed: bool = False
    """Whether the last kept turn has new results."""


async def play_again(
    run: AgentProgress,
    saved: Sequence[SavedTurn],
    tools: Tools,
    begun_with: int,
    has_network: bool,
    turn_ended: Callable[[int], Awaitable[None]],
) -> Replay:
    """Add the saved turns to the conversation, as far as they can be kept. `begun_with`: number of turns whose calls are not
    run again, because the sandbox began with their files. `turn_ended` is called after each turn that was run again.
    Replies of an environment are added as they were; its state is left to the caller.

    Raises as `Tools.call`; ResumeFailed if the rollout must begin again in another sandbox; TaskError or TemplateUnusable if
    the chat template fails.
    """
    replayed, lost = 0, loses_state([one.turn for one in saved[:begun_with]])
    tools.lose_state(lost)
    for number, one in enumerate(saved, start=1):
        again = number > begun_with
        if again and (why := _not_repeatable(one.turn, has_network, lost)) is not None:
            return Replay(number - 1, replayed, f"turn {number}: {why}")
        if not fits(run, one, await prompt_ids_of(run.conversation, None)):
            why = f"turn {number}: its prompt would have other tokens now"
            if not again:
                raise ResumeFailed(f"{why}, and the snapshot has files of later turns")
            return Replay(number - 1, replayed, why)
        add_saved(run, one)
        run.turns.append(one.turn)
        if again:
            replayed += 1
            if (why := (await call_again(run, one.turn, tools)).differs) is not None:
                if one.turn.observation is not None:
                    raise ResumeFailed(f"turn {number}: {why}, and the environment has replied to the one before")
                return Replay(number, replayed, f"turn {number}: {why}", changed=True)
        else:
            append_results(run, _recorded(run, one.turn))
        if one.turn.observation is not None:
            run.conversation.add_reply(one.reply_role, one.turn.observation)
        if again:
            await turn_ended(number)
            failpoint("after-played-turn")
    return Replay(len(saved), replayed)


def _not_repeatable(turn: Turn, has_network: bool, lost: Set[str]) -> str | None:
    if lost and turn.tool_calls:
        return f"the state of {' and '.join(sorted(lost))} is not in the snapshot"
    return not_repeatable(turn, has_network)


def fits(run: AgentProgress, saved: SavedTurn, prompt: Sequence[int]) -> bool:
    """Whether the turn was sampled after this prompt, which is the next one. The turns before it are the same."""
    turn, before = saved.turn, run.turns[-1] if run.turns else None
    same_segment = before is not None and before.segment == turn.segment
    begun = before.prompt_length + before.response_length if before is not None and same_segment else 0
    return len(prompt) == turn.prompt_length and prompt_digest(prompt[begun:]) == saved.prompt_digest


def add_saved(run: AgentProgress, saved: SavedTurn) -> None:
    """Add the sampled ids to the conversation. Raises ResumeFailed if the calls are read in another way."""
    turn, conversation = saved.turn, run.conversation
    conversation.add_sampled(saved.token_ids, saved.logprobs, saved.weights_versions, turn.finish_reason)
    parsed = conversation.last.parsed
    results = len(turn.tool_results)
    if calls_of(parsed) != turn.tool_calls or results not in (0, len(parsed.calls), len(parsed.calls) + 1):
        raise ResumeFailed(f"turn {len(run.turns) + 1}: its tool calls are read in another way now")
    run.unread += parsed.error is not None


@dataclass(frozen=True, slots=True)
class CalledAgain:
    results: list[ToolResult]
    """Results that the model reads."""
    differs: str | None
    """Difference from the first time; None if there is none. Then the texts are those of the first time."""


async def call_again(run: AgentProgress, turn: Turn, tools: Tools) -> CalledAgain:
    """Run the calls of the last turn again, and append their results. `turn`: how it was the first time. If a result is another
    one, the last turn gets the new results."""
    parsed = run.conversation.last.parsed
    done = [await tools.call(call.name, call.arguments) for call in parsed.calls]
    texts = result_texts(run, parsed, [result.text for result in done])
    differs = next(
        (n for n, pair in enumerate(zip(turn.tool_results, texts.all, strict=False)) if not same(*pair)), None
    )
    why = None
    if differs is None and len(turn.tool_results) == len(texts.all):
        texts, run.turns[-1] = _recorded(run, turn), turn
    else:
        why = f"call {(differs or 0) + 1} had another result"
        run.turns[-1] = evolve(turn, tool_results=texts.all, failed_calls=failed_calls(done, texts))
    append_results(run, texts)
    return CalledAgain(results_of(texts, done), why)


def _recorded(run: AgentProgress, turn: Turn) -> ResultTexts:
    count = len(run.conversation.last.parsed.calls)
    return ResultTexts(turn.tool_results[:count], turn.tool_results[count] if len(turn.tool_results) > count else None)

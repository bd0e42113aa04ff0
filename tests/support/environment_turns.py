"""Check of a trajectory with an environment: its tokens are the template's, and only the model's turns are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trajectory import Trajectory
from tests.support.yard import MODEL


def check(trajectory: Trajectory, opening: Sequence[Mapping[str, Any]], tools: Sequence[str] = ()) -> None:
    """`opening`: the messages before the first turn."""
    template, (segment,) = ChatTemplate.load(MODEL), trajectory.segments
    schemas, messages = [SCHEMAS[name] for name in tools], list(opening)
    mask = [0] * len(segment.token_ids)
    for turn in trajectory.turns:
        assert template.decode(segment.token_ids[: turn.prompt_length]) == template.render(messages, schemas, True)
        mask[turn.prompt_length : turn.prompt_length + turn.response_length] = [1] * turn.response_length
        messages.append({"role": "assistant", "content": turn.text})
        messages += [{"role": "tool", "content": result} for result in turn.tool_results]
        messages += [{"role": "user", "content": turn.observation}] if turn.observation is not None else []
    assert segment.loss_mask == mask
    assert trajectory.reward == sum(turn.reward for turn in trajectory.turns if turn.reward is not None)

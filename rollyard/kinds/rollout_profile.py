"""Profiles: where the time and the tokens of rollouts go. One of a rollout, and the sums over many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollyard.kinds.base import WireModel

SAMPLED_PARTS = ("thoughts", "calls", "answers")
"""Fields of TokenParts that the model samples. It reads the others."""
UNREADABLE = "(unreadable)"
"""Stands for the name of the tool of a call that could not be read."""
OTHER = "(other)"
"""Stands for the names of tools beyond MAX_TOOLS."""
MAX_TOOLS = 20


class TokenParts(WireModel):
    """Tokens of conversations by part, each counted once."""

    prompt: int = 0
    """Tokens of the first prompt."""
    thoughts: int = 0
    """Sampled. The sampled tokens of a turn are divided by the length of its texts."""
    calls: int = 0
    """Sampled: tool calls."""
    answers: int = 0
    """Sampled: all other text."""
    outputs: int = 0
    """Read: outputs of tools."""
    environment: int = 0
    """Read: replies of the environment."""
    repeated: int = 0
    """Read again after a break of the token prefix."""


class ToolUse(WireModel):
    """Calls of one tool."""

    tool: str
    calls: int = 0
    judged: int = 0
    """Calls of which it is known whether they failed. Of the calls of a harness it is not."""
    failed: int = 0
    tokens: int = 0
    """Tokens of the calls' outputs that the model read. Outputs of several calls of one turn share its tokens by the length
    of their texts."""

    def plus(self, other: ToolUse) -> ToolUse:
        names = ("calls", "judged", "failed", "tokens")
        return ToolUse(tool=self.tool, **{name: getattr(self, name) + getattr(other, name) for name in names})


class TurnBand(WireModel):
    """Turns of neighbouring numbers."""

    turns: int = 0
    read: int = 0
    """Tokens that were new in the turns' prompts."""
    sampled: int = 0
    context: int = 0
    """Tokens of the turns' whole prompts."""

    def plus(self, other: TurnBand) -> TurnBand:
        names = ("turns", "read", "sampled", "context")
        return TurnBand(**{name: getattr(self, name) + getattr(other, name) for name in names})


class RolloutProfile(WireModel):
    """Where the time of RUN and the tokens of one rollout's last attempt went."""

    model: float = 0.0
    """Seconds of RUN in model calls."""
    tools: float = 0.0
    environment: float = 0.0
    tokens: TokenParts = TokenParts()
    by_tool: list[ToolUse] = []
    bands: list[TurnBand] = []
    """Turn 1; turns 2 and 3; 4 to 7; 8 to 15, and so on."""


def band_of(turn: int) -> int:
    """Return the place in `bands` of a turn, which is counted from 1."""
    return turn.bit_length() - 1


def merged(bands: Sequence[TurnBand], more: Sequence[TurnBand]) -> list[TurnBand]:
    """Return the sums of two lists of bands."""
    none = TurnBand()
    most = max(len(bands), len(more))
    pairs = ((of[i] if i < len(of) else none for of in (bands, more)) for i in range(most))
    return [first.plus(second) for first, second in pairs]


class Spread(WireModel):
    """Seconds of one stage over many rollouts."""

    stage: Literal["queued", "init", "run", "eval"]
    rollouts: int
    """Rollouts whose seconds are known."""
    total: float
    """Seconds of all."""
    p50: float | None
    p95: float | None


class ToolRow(ToolUse):
    """Calls of one tool over many rollouts."""

    rollouts: int
    """Rollouts that called it."""


class BandRow(TurnBand):
    """Turns of neighbouring numbers over many rollouts."""

    first: int
    last: int


class ProfileView(WireModel):
    """Answer of `GET /v1/rollouts/profile`."""

    matching: int
    """Ended rollouts that match, without checks."""
    rollouts: int
    """Rollouts that are in the sums: the newest ones, if there are too many."""
    profiled: int
    """Those whose turns and tokens are known. A rollout without a result, or of an older node agent, has only stages."""
    scored: int
    stages: list[Spread]
    """`queued` is all waiting: for a place, and between the stages."""
    model: float
    """Seconds of RUN in model calls; `tools` and `environment` likewise."""
    tools: float
    environment: float
    other: float
    """The rest of RUN of the profiled rollouts, such as waiting for a model server."""
    tokens: TokenParts
    by_tool: list[ToolRow]
    """The most calls first."""
    bands: list[BandRow]

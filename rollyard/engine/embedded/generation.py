"""One generation request, from submit to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollyard.engine.embedded.sampling import Draw, SamplingParams
from rollyard.engine.embedded.stop_strings import StopStringMatcher
from rollyard.engine.embedded.token_grammar import TokenGrammar

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class StopTokens:
    """The tokens that end a generation. The result includes the token that ended the generation."""

    eos: int | None = None
    """The model's first end token. If this token ends the generation, stop_reason is null."""
    others: frozenset[int] = frozenset()
    """Ids of further end tokens. If such a token ends the generation, stop_reason is its id."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step for one generation. An abort has no draw."""

    draw: Draw | None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The token or the stop string that ended the generation; None in all other cases, and for `StopTokens.eos`."""
    version: str = ""
    """Version of the weights that made the draw; empty if none has been set."""
    error: str = ""
    """Reason why the request cannot go on. The finish_reason is then "abort"."""


@dataclass(eq=False)
class GenerationRequest:
    """One request. From submit to the last StepResult, only the engine's thread may use the fields that change."""

    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    """Greatest number of sampled tokens. At least 1; prompt and sampled tokens together must fit into the context."""
    stops: StopTokens = StopTokens()
    stop_strings: StopStringMatcher | None = None
    grammar: TokenGrammar | None = None
    """Limits the tokens that may be sampled."""
    submitted_at: float = 0.0
    """Submit time in monotonic seconds."""
    slot: int = -1
    """Slot in the cache; -1 before the request runs."""
    cached: int = 0
    """Number of prompt tokens whose keys and values were found in the cache."""
    computed: int = 0
    """Number of leading tokens whose keys and values are in the slot."""
    tokens: list[int] = field(init=False)
    """The prompt followed by the sampled tokens."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def drawn(self) -> int:
        return len(self.tokens) - len(self.prompt)

    def advance(self, draw: Draw, version: str = "") -> StepResult:
        """Append a sampled token. Return the step's result, whose finish_reason is None unless this token is the last."""
        self.tokens.append(draw.token)
        if draw.token == self.stops.eos:
            return StepResult(draw, "stop", version=version)
        if draw.token in self.stops.others:
            return StepResult(draw, "stop", draw.token, version)
        if self.grammar is not None:
            self.grammar.accept(draw.token)
        if self.stop_strings and (met := self.stop_strings.add(draw.token)):
            return StepResult(draw, "stop", met, version)
        return StepResult(draw, "length" if self.drawn >= self.max_tokens else None, version=version)

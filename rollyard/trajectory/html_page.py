"""Trajectories as one HTML file to send to somebody. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.trajectory.html_document import document, escaped, facts
from rollyard.trajectory.segment import Segment
from rollyard.trajectory.trajectory import Trajectory
from rollyard.trajectory.turn import Turn

_BOUNDS = (-0.1, -0.7, -2.3, -4.6)
"""Logprobs below which a token gets the next class: probabilities of 90, 50, 10 and 1 %."""
_STYLE = """
:root { --p0: #d8ecf8; --p1: #fdf1d8; --p2: #fbd9a5; --p3: #f5b06a; --p4: #a63f14; --p4-ink: #fff; }
@media (prefers-color-scheme: dark) { :root { --p0: #17384b; --p1: #43381c; --p2: #5e4318; --p3: #85501c; --p4: #a8431b; } }
pre, .tokens { margin: 4px 0; padding: 8px 10px; background: var(--sheet); border: 1px solid var(--line);
  border-radius: 4px; font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.result { border-left: 4px solid var(--dim); }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--dim); }
.given { color: var(--dim); } .p0 { background: var(--p0); } .p1 { background: var(--p1); }
.p2 { background: var(--p2); } .p3 { background: var(--p3); } .p4 { background: var(--p4); color: var(--p4-ink); }
"""


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """Texts of token ids. A token that is a part of a character has its bytes in `parts` instead. Others show their id."""

    texts: Mapping[int, str] = field(default_factory=dict)
    parts: Mapping[int, bytes] = field(default_factory=dict)


def html_page(trajectories: Sequence[Trajectory], known: ShownTokens) -> str:
    """Return the file: one trajectory, or several, such as those of a group."""
    group = {t.group for t in trajectories}
    title = trajectories[0].id if len(trajectories) == 1 else f"{len(trajectories)} rollouts"
    if len(trajectories) > 1 and len(group) == 1 and (name := group.pop()) is not None:
        title = f"group {name}"
    parts = ["".join(_rollout(trajectory, known)) for trajectory in trajectories]
    return document(title, "".join(parts), _STYLE)


def _rollout(trajectory: Trajectory, known: ShownTokens) -> Iterator[str]:
    yield f"<section>\n<h2>{escaped(trajectory.id)}</h2>\n{facts(_facts(trajectory))}"
    yield _folded("task", _block(json.dumps(trajectory.task.model_dump(mode="json"), indent=1, ensure_ascii=False)))
    for number, turn in enumerate(trajectory.turns, start=1):
        yield from _turn(number, turn)
    if trajectory.harness_output:
        yield _folded("output of the command", _block(trajectory.harness_output))
    for number, segment in enumerate(trajectory.segments, start=1):
        sampled = sum(segment.loss_mask)
        about = f"tokens of segment {number}: {len(segment.token_ids)}, of which {sampled} sampled"
        yield _folded(about, f'<div class="tokens">{"".join(_tokens(segment, known))}</div>')
    yield "</section>\n"


def _facts(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    yield "status", trajectory.status.value
    yield "reward", reward
    for name in ("group", "endpoint", "node", "cut_short"):
        if (value := getattr(trajectory, name)) is not None:
            yield name.replace("_", " "), str(value)
    if trajectory.error is not None:
        yield "error", f"{trajectory.error.reason} in {trajectory.error.stage}: {trajectory.error.message}"
    for name in ("parts", "metrics", "breaks"):
        if found := getattr(trajectory, name):
            yield name, ", ".join(f"{key} {value:g}" for key, value in found.items())
    for note in trajectory.notes:
        yield "note", note


def _turn(number: int, turn: Turn) -> Iterator[str]:
    reward = "" if turn.reward is None else f", reward {turn.reward:g}"
    about = f"turn {number}: {turn.prompt_length} + {turn.response_length} tokens, {turn.finish_reason}{reward}"
    yield f"<h3>{escaped(about)}</h3>\n{_block(turn.text)}"
    for call in turn.tool_calls:
        yield _folded(
            f"call of {call.get('name')}", _block(json.dumps(call.get("arguments"), indent=1, ensure_ascii=False))
        )
    for result in turn.tool_results:
        yield _block(result, "result")
    if turn.observation is not None:
        yield _block(turn.observation, "result")


def _tokens(segment: Segment, known: ShownTokens) -> Iterator[str]:
    """Yield the tokens, neighbours of one class together. The classes show the mask and the logprob."""
    last, waiting, bytes_waiting = "", list[str](), b""
    for id, sampled, logprob in zip(segment.token_ids, segment.loss_mask, segment.logprobs, strict=True):
        kind = _kind(logprob) if sampled and logprob is not None else "given"
        text, bytes_waiting = _shown(id, known, bytes_waiting)
        if kind != last and waiting:
            yield f'<span class="{last}">{escaped("".join(waiting))}</span>'
            waiting.clear()
        last = kind
        waiting.append(text)
    if waiting:
        yield f'<span class="{last}">{escaped("".join(waiting))}</span>'


def _shown(id: int, known: ShownTokens, before: bytes) -> tuple[str, bytes]:
    """Return a token's text, and the bytes of a character that goes on in the next token. `before`: those of earlier ones."""
    if (part := known.parts.get(id)) is None:
        return known.texts.get(id, f"⟨{id}⟩"), b""
    try:
        return (before + part).decode(), b""
    except UnicodeDecodeError:
        return "", (before + part)[-4:]


def _kind(logprob: float) -> str:
    return f"p{sum(logprob < bound for bound in _BOUNDS)}"


def _folded(about: str, content: str) -> str:
    return f"<details><summary>{escaped(about)}</summary>\n{content}</details>\n"


def _block(content: str, kind: str = "") -> str:
    return f"<pre{' class=' + kind if kind else ''}>{escaped(content)}</pre>\n"

"""The turns of a rollout as text for people: while it runs, and after its end."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rollyard.cli.printable import printable
from rollyard.cli.progress import state_line
from rollyard.client.async_client import AsyncClient
from rollyard.client.attachment import turns as live_turns
from rollyard.core.errors import Conflict, RequestTimeout, Unavailable
from rollyard.kinds.rollout import RolloutView, Stage, Status
from rollyard.trajectory import Trajectory, Turn
from rollyard.wire.attach import AttachKind, Start

WAIT_SECONDS = 1.0
_OUTPUT = "| "
"""Words before each line that a command of `type: command` printed."""


async def print_turns(client: AsyncClient, namespace: str, id: str, follow: bool, tail: int | None) -> None:
    """Print the turns so far; with `follow` all turns until the rollout has ended."""
    view, trajectory = await client.rollout(id, namespace)
    if trajectory is not None:
        return _print_ended(trajectory, tail)
    if not follow:
        found, output = await so_far(client, namespace, view)
        for index, turn in list(enumerate(found))[-tail if tail else 0 :] if tail != 0 else []:
            _echo([*call_lines(index, turn), *result_lines(turn)])
        _echo(_output_lines(output))
        click.echo(f"{state_line(view)}; -f follows it", err=True)
        return
    printed = _Printed()
    while trajectory is None:
        printed.state(view)
        if view.status is Status.RUNNING and view.stage is not Stage.EVAL:
            await _follow_attempt(client, namespace, view, printed)
        view, trajectory = await client.rollout(id, namespace, wait=WAIT_SECONDS)
    if printed.attempt not in (trajectory.attempt, 0):
        printed.begin(trajectory.attempt)
    for index, turn in enumerate(trajectory.turns):
        printed.turn(index, turn, break_lines(trajectory, index))
    printed.rest(trajectory.harness_output or "")
    _echo(_end_lines(trajectory))


async def so_far(client: AsyncClient, namespace: str, view: RolloutView) -> tuple[list[Turn], str]:
    """Return the turns of the present attempt, and what its command has printed. While no node agent works on it, such as in
    the queue after a lost node, these are the turns that the server has saved."""
    if view.status is not Status.RUNNING or view.stage is Stage.EVAL:
        return await client.saved_turns(view.id, namespace), ""
    found: dict[int, Turn] = {}
    output = ""
    try:
        async with client.attach(view.id, Start(kind=AttachKind.TURNS, output=True), namespace) as attached:
            async for one in live_turns(attached):
                if isinstance(one, str):
                    output += one
                else:
                    found[one[0]] = one[1]
    except (Conflict, Unavailable, RequestTimeout) as error:
        click.echo(printable(f"{error}; these are the saved turns"), err=True)
        return await client.saved_turns(view.id, namespace), ""
    return list(found.values()), output


async def _follow_attempt(client: AsyncClient, namespace: str, view: RolloutView, printed: _Printed) -> None:
    """Print the turns of the present attempt until RUN ends, or until its node agent is lost."""
    printed.begin(view.attempt)
    try:
        start = Start(kind=AttachKind.TURNS, follow=True, output=True)
        async with client.attach(view.id, start, namespace) as attached:
            async for one in live_turns(attached):
                if isinstance(one, str):
                    printed.output(one)
                else:
                    printed.turn(*one)
    except (Conflict, Unavailable, RequestTimeout) as error:
        printed.say(str(error))


class _Printed:
    """Everything that is on the screen already."""

    def __init__(self) -> None:
        self.attempt = 0
        self._said: set[str] = set()
        self._calls: set[int] = set()
        self._results: set[int] = set()
        self._line: str | None = None
        """Begin of a line that a command has not ended yet; None if it has printed nothing."""

    def begin(self, attempt: int) -> None:
        if attempt != self.attempt:
            if self.attempt:
                click.echo(f"=== attempt {attempt}")
            self.attempt, self._calls, self._results, self._line = attempt, set(), set(), None

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            click.echo(printable(text), err=True)

    def state(self, view: RolloutView) -> None:
        self.say(state_line(view).partition(" (since ")[0])

    def output(self, text: str) -> None:
        """Print the whole lines of what a command prints, each behind a bar."""
        *lines, self._line = ((self._line or "") + text).split("\n")
        _echo([_OUTPUT + line for line in lines])

    def rest(self, output: str) -> None:
        """Print a command's output, or if it was printed while it ran, only the end of its last line."""
        _echo(_output_lines(output if self._line is None else self._line))

    def turn(self, index: int, turn: Turn, begins: Sequence[str] = ()) -> None:
        """`begins`: lines about the segment that the turn opens; they are known when the rollout has ended."""
        if index not in self._calls:
            self._calls.add(index)
            _echo([*begins, *call_lines(index, turn)])
        if index not in self._results and (lines := result_lines(turn)):
            self._results.add(index)
            _echo(lines)


def _print_ended(trajectory: Trajectory, tail: int | None) -> None:
    turns = list(enumerate(trajectory.turns))
    for index, turn in turns[len(turns) - tail if tail is not None and tail < len(turns) else 0 :]:
        _echo([*break_lines(trajectory, index), *call_lines(index, turn), *result_lines(turn)])
    _echo([*_output_lines(trajectory.harness_output or ""), *_end_lines(trajectory)])


def _output_lines(output: str) -> list[str]:
    return [_OUTPUT + line for line in output.removesuffix("\n").split("\n")] if output else []


def _end_lines(trajectory: Trajectory) -> list[str]:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    lines = [f"=== {trajectory.status.value}, reward {reward}, {len(trajectory.turns)} turns", *trajectory.notes]
    if trajectory.cut_short is not None:
        lines.append(trajectory.cut_short)
    if trajectory.error is not None:
        lines.append(f"{trajectory.error.reason} in {trajectory.error.stage}: {trajectory.error.message}")
    return [*lines, *break_counts(trajectory)]


def break_lines(trajectory: Trajectory, index: int) -> list[str]:
    """Return a line with the cause if the token prefix breaks before the turn at this index, so that a segment begins."""
    turns = trajectory.turns
    if index == 0 or turns[index].segment == turns[index - 1].segment:
        return []
    number = turns[index].segment
    by = trajectory.segments[number].extras.get("opened_by")
    words = [str(word) for word in by.values() if word] if isinstance(by, dict) else [str(by)] if by else []
    return [f"--- segment {number + 1} begins: {': '.join(words) or 'the cause is not recorded'}"]


def break_counts(trajectory: Trajectory) -> list[str]:
    """Return a line with the number of breaks of the token prefix by cause; none without a break."""
    counts = ", ".join(f"{cause} {number}" for cause, number in trajectory.breaks.items())
    return [f"breaks of the token prefix: {counts}"] if counts else []


def call_lines(index: int, turn: Turn) -> list[str]:
    """Return the turn's header, and its tool calls; without a call, the model's text."""
    cut = ", cut at the limit of tokens" if turn.finish_reason == "length" else ""
    seconds = turn.timings.get("model")
    model = f", model {seconds:.2f} s" if seconds is not None else ""
    lines = [f"--- turn {index + 1}: {turn.prompt_length} + {turn.response_length} tokens{model}{cut}"]
    for call in turn.tool_calls:
        arguments = call.get("arguments") or {}
        words = (
            [f"{name}: {value}" for name, value in arguments.items()]
            if isinstance(arguments, dict)
            else [str(arguments)]
        )
        if len(words) == 1 and isinstance(arguments, dict):
            words = [str(value) for value in arguments.values()]
        lines += [f"{call.get('name')}> {word}" for word in words] or [f"{call.get('name')}>"]
    return lines if turn.tool_calls else [*lines, turn.text]


def result_lines(turn: Turn) -> list[str]:
    """Return the results of the tools, and the environment's reply, as the model saw them; empty without any yet."""
    lines: list[str] = []
    for number, result in enumerate(turn.tool_results):
        seconds = f", {turn.timings['tools']:.2f} s" if number == 0 and "tools" in turn.timings else ""
        together = " together" if number == 0 and len(turn.tool_results) > 1 else ""
        failed = ", failed" if number in (turn.failed_calls or []) else ""
        lines += [f"--- tool result{failed}{seconds}{together}", result]
    if turn.observation is not None:
        reward = "" if turn.reward is None else f", reward {turn.reward:g}"
        seconds = f", {turn.timings['environment']:.2f} s" if "environment" in turn.timings else ""
        lines += [f"--- environment{seconds}{reward}", turn.observation]
    return lines


def _echo(lines: Sequence[str]) -> None:
    """Print lines. Control characters are shown, because an agent wrote the text, and this is a person's terminal."""
    for line in lines:
        click.echo(printable(line.rstrip("\n")))

"""When a snapshot is worth its cost."""

from __future__ import annotations

import pytest

from rollyard.node.snapshot_cost import SHARE, Cost, is_due, may_write, prefers_snapshot
from rollyard.trajectory import Turn


def turn(tools: float = 1.0, model: float = 9.0, name: str = "bash", result: str = "ok") -> Turn:
    calls = [{"name": name, "arguments": {"command": "create"}}]
    timings = {"model": model, "tools": tools}
    return Turn(
        segment=0, prompt_length=1, response_length=1, text="", finish_reason="stop", tool_calls=calls,
        tool_results=[result], timings=timings,
    )  # fmt: skip


@pytest.mark.parametrize("last", [None, Cost(0.2, 1000), Cost(5.0, 0), Cost(2.0, 64 << 20)])
def test_snapshots_take_a_bounded_share_of_the_time(last: Cost | None) -> None:
    seconds, spent = 0.0, 0.0
    while seconds < 3600:
        since = next(s for s in range(1, 100_000) if is_due(last, s, writing_calls=1))
        seconds, spent = seconds + since, spent + (last.whole if last is not None else 0.0)
    assert spent <= SHARE * seconds + 0.01
    assert not is_due(last, 1e9, writing_calls=0), "nothing has changed"


def test_calls_that_only_look_write_nothing() -> None:
    assert not may_write({"name": "editor", "arguments": {"command": "view", "path": "a"}})
    assert may_write({"name": "editor", "arguments": {"command": "create", "path": "a"}})
    assert may_write({"name": "bash", "arguments": {"command": "cat a"}})


CUT = "[timed out after 30 s and was stopped]"


@pytest.mark.parametrize(
    ("turns", "snapshot", "network", "preferred"),
    [
        ([turn()] * 5, 3, False, False),  # short calls: no turn is sampled again
        ([turn(tools=30.0)] * 5, 3, False, True),  # long calls, and two turns are sampled again
        ([turn(tools=30.0, model=200.0)] * 5, 1, False, False),  # sampling four turns again would take longer
        ([turn()] * 5, 3, True, True),  # calls with the network are never run again
        ([turn(), turn(), turn(result=CUT), turn(), turn()], 3, False, True),
        ([turn(), turn(), turn(result=CUT), turn(), turn()], 2, False, False),  # as many turns, and the shell's state
        ([turn()] * 5, 5, False, False),
        ([turn(), turn(), turn(result=CUT), turn(), turn()], 1, False, False),
        ([turn(tools=30.0, name="editor")] * 5, 1, False, True),  # the editor keeps no state: nothing is sampled again
    ],
)
def test_a_snapshot_is_used_where_it_saves_turns_or_time(
    turns: list[Turn], snapshot: int, network: bool, preferred: bool
) -> None:
    assert prefers_snapshot(turns, snapshot, network) is preferred
    assert prefers_snapshot(turns, snapshot, network, began_so=True), "calls after it had another state"

"""A rollout's history as people read it."""

from __future__ import annotations

from rollyard.cli.rollout_history import history_lines
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_history import ChosenEndpoint, HistoryEntry, RolloutHistory

AT = 1_700_000_000.0


def entry(after: float, event: str, stage: Stage = Stage.INIT, attempt: int = 1, **fields: object) -> HistoryEntry:
    made = {"at": AT + after, "event": event, "attempt": attempt, "stage": stage, **fields}
    return HistoryEntry.model_validate(made)


def shown(*entries: HistoryEntry, dropped: int = 0, kept_first: int = 0) -> list[str]:
    history = RolloutHistory(id="r", namespace="default", entries=list(entries), dropped=dropped, kept_first=kept_first)
    return history_lines(history)


def test_a_history_says_who_got_the_rollout_and_why_and_how_it_went_on() -> None:
    endpoints = {"policy": ChosenEndpoint(id="policy-0", reason="WarmPrefix")}
    lease = {"node": "n1", "allocation": "demo-0", "endpoints": endpoints}
    lines = shown(
        entry(0, "Queued"),
        entry(1.25, "Leased", lease=1, reason="MostRoom", able=3, free=12, weights_version="v2", **lease),
        entry(2, "StageBegun", Stage.RUN),
        entry(3, "EndpointMoved", Stage.RUN, role="policy", previous="policy-0", endpoint="policy-1", reason="EndpointFailed",
              message="HTTP 502\n  Bad Gateway"),
        entry(4, "Fault", Stage.RUN, reason="SandboxLost", message="it died", seconds={"init": 0.5}, retry_at=AT + 4.5),
        entry(5, "Leased", attempt=2, lease=2, reason="Exclusive", node="n2", allocation="demo-1"),
        entry(9, "Ended", Stage.EVAL, 2, status=Status.COMPLETED, reward=0.0, seconds={"run": 3.0, "eval": 0.25}),
    )  # fmt: skip
    assert [" ".join(line.split()) for line in lines] == [
        "TIME AFTER ATTEMPT LEASE STAGE EVENT DETAILS",
        "2023-11-14 22:13:20 0.0s 1 INIT Queued",
        "2023-11-14 22:13:21 1.2s 1 1 INIT Leased node n1, demo-0 (the most room of 3 node agents: 12); policy policy-0 (a "
        "part of the prompt is in its cache); weights v2",
        "2023-11-14 22:13:22 2.0s 1 RUN StageBegun",
        "2023-11-14 22:13:23 3.0s 1 RUN EndpointMoved policy from policy-0 to policy-1; EndpointFailed: HTTP 502 Bad Gateway",
        "2023-11-14 22:13:24 4.0s 1 RUN Fault SandboxLost: it died; at work: INIT 0.5 s; the next "
        "attempt begins 0.5 s later, from the beginning of INIT",
        "2023-11-14 22:13:25 5.0s 2 2 INIT Leased node n2, demo-1 (a node agent without other work)",
        "2023-11-14 22:13:29 9.0s 2 EVAL Ended Completed, reward 0; at work: RUN 3.0 s, EVAL 0.2 s",
    ]


def test_a_gap_in_a_history_is_shown_where_it_is() -> None:
    lines = shown(entry(0, "Queued"), entry(1, "Leased"), entry(90, "Ended"), dropped=70, kept_first=2)
    assert (lines[3].startswith("..."), lines[3].endswith("70 entries are not kept")) == (True, True)
    assert "Ended" in lines[4]


def test_words_of_a_later_server_are_shown_as_they_are() -> None:
    (line,) = shown(entry(0, "Frozen", reason="Cold", message="below zero"))[1:]
    assert line.endswith("Frozen   Cold: below zero")

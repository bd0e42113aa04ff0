"""The least likely tokens of a rollout as a table."""

from __future__ import annotations

from rollyard.cli.rollout_tokens import token_rows
from rollyard.kinds.rollout import Status
from rollyard.trajectory import Segment, Trajectory, Turn


def test_the_least_likely_tokens_come_first_with_their_texts_and_turns() -> None:
    segment = Segment(
        token_ids=[5, 6, 7, 5, 8], loss_mask=[0, 1, 1, 0, 1], logprobs=[None, -0.1, -3.0, None, -11.2],
        weights_version=[None, "v", "v", None, "v"], prompt_length=1,
    )  # fmt: skip
    turns = [
        Turn(segment=0, prompt_length=1, response_length=2, text="ab", finish_reason="stop"),
        Turn(segment=0, prompt_length=4, response_length=1, text="\n", finish_reason="stop"),
    ]
    found = Trajectory(
        id="r", group=None, sample_index=0, attempt=1, task={"kind": "math"}, status=Status.COMPLETED, reward=0.5,
        segments=[segment], turns=turns,
    )  # fmt: skip
    texts = {5: "<p>", 6: "a", 7: "b", 8: "\n"}
    _, *rows = token_rows(found, {id: repr(text) for id, text in texts.items()}, texts, 2)
    assert rows == [
        ["0.00137 %", "-11.200", "'\\n'", "8", "2", "1", "4", "'<p>ab<p>'"],
        ["4.98 %", "-3.000", "'b'", "7", "1", "1", "2", "'<p>a'"],
    ]

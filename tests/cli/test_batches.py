"""A batch described for people."""

from __future__ import annotations

from dataclasses import replace

from rollyard.cli.batches import described, stepped
from rollyard.kinds.batch import BatchRequest, BatchStatus, DatasetRef
from rollyard.kinds.metric_history import BatchHistory, TrainingStep
from rollyard.server.batches.batch_view import view
from rollyard.store.batch_records import BatchRecord, LengthSums

BATCH = BatchRecord("default", "b", "", "", "swe", "d", 100.0)
REQUEST = BatchRequest(pool="swe", target=32, dataset=DatasetRef(name="d"))


def test_a_description_has_waste_bias_staleness_and_what_was_passed_over() -> None:
    batch = replace(
        BATCH, status=BatchStatus.COMPLETED, ended_at=160.0, delivered=32, all_high=3, all_low=5, other=1, faulty=2,
        compared=40, differing=30,
        wasted_tokens=900, passed_over=17, staleness=16, whole_lengths=LengthSums(40, 4000, 40, 40.0),
        delivered_lengths=LengthSums(20, 1000, 20, 10.0),
    )  # fmt: skip
    text = "\n".join(described(view(batch, None, REQUEST)))
    assert "delivered 32 of 32" in text
    assert "filtered 9: 5 all low, 3 all high, 1 other" in text
    assert "faulty 2" in text
    assert "informative share 75% (" in text
    assert "estimated share that passes the filter 50%" in text, "no verdict in the series yet"
    assert "wasted tokens 900" in text
    assert "17 tasks" in text
    assert "tokens 0.50, turns 1.00, seconds 0.50" in text
    assert "0.5 training steps" in text
    assert "time to target: 60 s" in text


def test_a_batch_without_workers_says_where_to_look() -> None:
    assert described(view(replace(BATCH, open=3), None, REQUEST))[-1].endswith("`rollyard describe rolloutpool swe`")


def test_the_reward_of_the_last_ten_steps_is_beside_that_of_those_before() -> None:
    unknown = dict.fromkeys(name for name, field in TrainingStep.model_fields.items() if field.is_required())
    counts = dict.fromkeys(("groups", "all_low", "all_high", "other", "faulty", "wasted_tokens", "rollouts"), 0)
    steps = [
        TrainingStep.model_validate(
            {
                **unknown, **counts, "batch": "b", "step": step, "began_at": 0.0, "ended_at": 0.0,
                "judged_rollouts": 1 + step % 2, "judged_reward_mean": float(step >= 5),
            }
        )
        for step in range(15)
    ]  # fmt: skip
    history = BatchHistory(id="b", namespace="default", pool="p", series="s", steps=steps)
    assert "mean reward of the last 10 steps 1.000; of the 5 before: 0.000" in stepped(history)
    few = history.model_copy(update={"steps": steps[:10]})
    assert not any("of the last" in line for line in stepped(few))

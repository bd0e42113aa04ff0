"""Reward files of verifiers, as Harbor reads them."""

from __future__ import annotations

import pytest

from rollyard.core.errors import TaskError
from rollyard.tasks.harbor.reward_files import UnreadableReward, read_rewards, reward_of

READ = [
    (None, b"1", {"reward": 1.0}), (None, b" 0.5\n", {"reward": 0.5}), (None, b"-2e1", {"reward": -20.0}),
    (b'{"reward": 0.25}', b"1", {"reward": 0.25}), (b'{"a": true, "b": 0}', None, {"a": 1.0, "b": 0.0}), (b"{}", b"1", {}),
]  # fmt: skip
UNREAD = [
    (None, None, "neither"), (None, b"", "no number"), (None, b"nan", "no finite"), (None, b"1e999", "no finite"),
    (None, b"\xff", "no number"), (b"", b"1", "no JSON"), (b"{", b"1", "no JSON"), (b"[1]", None, "no object"),
    (b"1", b"1", "no object"), (b'{"reward": "1"}', b"1", "no finite"), (b'{"reward": NaN}', b"1", "no finite"),
    (b'{"reward": 1e309}', None, "no finite"), (b'{"reward": null}', None, "no finite"),
    (b'{"a": {"b": 1}}', None, "no finite"),
    (b"[" * 100_000, None, "no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("as_json", "as_text", "rewards"), READ)
def test_rewards(as_json: bytes | None, as_text: bytes | None, rewards: dict[str, float]) -> None:
    assert read_rewards(as_json, as_text).rewards == rewards


@pytest.mark.parametrize(("as_json", "as_text", "why"), UNREAD)
def test_what_is_no_reward(as_json: bytes | None, as_text: bytes | None, why: str) -> None:
    with pytest.raises(UnreadableReward, match=why):
        read_rewards(as_json, as_text)


def test_an_integer_that_no_float_holds_is_none() -> None:
    """Harbor keeps it."""
    with pytest.raises(UnreadableReward, match="no finite"):
        read_rewards(b'{"a": 1' + b"0" * 400 + b"}", None)


def test_the_reward_of_several_keys() -> None:
    assert reward_of({"accuracy": 0.5}, "reward") == reward_of({"reward": 0.5, "a": 1.0}, "reward") == 0.5
    for rewards in ({}, {"a": 1.0, "b": 0.0}):
        with pytest.raises(TaskError, match="reward_key"):
            reward_of(rewards, "reward")


@pytest.mark.parametrize(
    ("as_json", "as_text", "named", "rewards", "suspicions"),
    [
        (b'{"reward": 1}', b"0", False, {"reward": 1.0}, 1), (b'{"reward": 1}', b"0", True, {"reward": 0.0}, 0),
        (b'{"reward": 1}', b"1.0", True, {"reward": 1.0}, 0), (b'{"a": 1}', b"0", False, {"a": 1.0}, 1),
        (b'{"a": 1}', b"1", True, {"a": 1.0}, 0), (b"{}", b"1", False, {}, 1), (b"{", b"0.5", True, {"reward": 0.5}, 0),
        (b'{"reward": 1}', None, False, {"reward": 1.0}, 0), (b'{"reward": 1}', None, True, {"reward": 1.0}, 1),
        (None, b"1", True, {"reward": 1.0}, 0), (b'{"reward": 1}', b"x", False, {"reward": 1.0}, 1),
    ],
)  # fmt: skip
def test_files_that_contradict_each_other(
    as_json: bytes | None, as_text: bytes | None, named: bool, rewards: dict[str, float], suspicions: int
) -> None:
    found = read_rewards(as_json, as_text, names_text=named)
    assert (found.rewards, len(found.suspicions)) == (rewards, suspicions)

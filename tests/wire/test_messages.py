"""Messages only grow: the old and the new understand each other as far as they can."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollyard.wire.base import Identity
from rollyard.wire.node import (
    CapacityRequest,
    HandBack,
    Hello,
    ImageFault,
    LeaseUnread,
    Resize,
    RolloutBroke,
    from_node,
    to_node,
)

IDENTITY = {"allocation": "a", "namespace": "default", "uid": "u", "job_id": "1", "instance": "i", "node": "n"}


def test_a_word_that_is_not_known_is_no_error() -> None:
    assert to_node(json.dumps({"type": "resize_some_day", "widths": 3})) is None
    assert from_node(json.dumps({"type": "shout"})) is None


def test_fields_that_are_not_known_are_passed_over() -> None:
    found = to_node(json.dumps({"type": "resize", "widths": {"RUN": 3, "REVIEW": 1}, "places": 8, "why": "queue"}))
    assert found == Resize(widths={"RUN": 3, "REVIEW": 1}, places=8)


def test_an_older_node_agent_leaves_out_what_it_does_not_know() -> None:
    assert from_node(json.dumps({"type": "hello", "identity": IDENTITY})) == Hello(identity=Identity(**IDENTITY))
    request = from_node(json.dumps({"type": "capacity_request", "init": 2, "eval": 1, "kinds": ["math"]}))
    assert request == CapacityRequest(init=2, eval=1, kinds=["math"], grants=None)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"reason": "Drain"}, None),
        ({"reason": "NodeAgentError", "message": "KeyError: 1"}, RolloutBroke("KeyError: 1")),
        ({"reason": "UnreadableLease"}, LeaseUnread()),
        ({"reason": "ImageUnavailable", "image": {"image": "a", "message": "no"}}, ImageFault(image="a", message="no")),
    ],
)
def test_the_cause_of_a_hand_back_has_a_type(said: dict[str, Any], cause: object) -> None:
    found = from_node(
        json.dumps({"type": "hand_back", "lease": {"namespace": "default", "id": "r", "fence": 1}, **said})
    )
    assert isinstance(found, HandBack)
    assert found.cause == cause

"""Options of an engine that the server reads."""

from __future__ import annotations

import pytest

from rollyard.kinds.engine_spec import VllmEngine


@pytest.mark.parametrize(
    ("arguments", "takes"),
    [
        ([], False),
        (["--scheduling-policy=priority"], True),
        (["--seed", "1", "--scheduling-policy", "priority"], True),
        (["--scheduling-policy=fcfs"], False),
        (["--served-model-name=priority"], False),
    ],
)
def test_an_engine_takes_priorities_only_with_their_policy(arguments: list[str], takes: bool) -> None:
    assert VllmEngine(extra_args=arguments).takes_priority is takes

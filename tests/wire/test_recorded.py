"""Messages only grow: each recorded message is read by today's code, field by field."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from rollyard.wire import attach, base, endpoint, engine, files, node
from rollyard.wire.node import from_node, to_node
from tests.support.recorded import lost_fields
from tests.wire.record import FOLDER, dump, recorded, unrecorded
from tests.wire.samples import SAMPLES

RULE = "wire messages only grow: keep every field under its name, and give a new one a default"
PARTS = {
    "ImageFault",
    "ImageStorage",
    "SandboxCounts",
    "WireMessage",
    "Identity",
    "LeaseRef",
    "Lease",
    "KeptSandbox",
    "UnreadableLease",
    "EngineLoad",
    "WeightsReport",
    "WeightsTarget",
}
"""Classes that stand in other messages only."""
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_message_is_read_in_full(path: Any) -> None:
    told = json.loads(path.read_text())
    message = read(path.name.partition(".")[0], told)
    assert lost_fields(told, dump(message)) == [], RULE


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_field_is_recorded(sample: BaseModel) -> None:
    assert unset(sample) == [], "give the field a value in tests/wire/samples.py"
    missing = unrecorded(sample)
    assert missing == [], f"{RULE}; if it has one: python -m tests.wire.record"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fields_of_a_later_release_are_ignored_at_every_depth(path: Any) -> None:
    name, told = path.name.partition(".")[0], json.loads(path.read_text())
    if name == "AllocationFile":
        pytest.skip("the spec of an engine is read strictly: an engine that ignores a setting would sample otherwise")
    assert dump(read(name, grown(told))) == dump(read(name, told))


def test_every_message_has_a_sample() -> None:
    modules = (attach, base, endpoint, engine, files, node)
    known = {name for m in modules for name, found in vars(m).items() if _is_message(found, m.__name__)}
    assert known - PARTS == {type(s).__name__ for s in SAMPLES}


def test_recorded_messages_are_small_and_carry_nothing_of_a_machine() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert len(text) < 40_000
    assert not re.search(r'"/(home|root|work|scratch)\b', text)
    assert all(recorded(type(sample).__name__) for sample in SAMPLES)


def read(name: str, told: Any) -> BaseModel:
    """Read as its receiver reads it."""
    if "type" in told:
        text = json.dumps(told)
        found = from_node(text) or to_node(text) or attach.control(text)
        assert type(found).__name__ == name, RULE
        return found  # type: ignore[return-value]
    model = next(getattr(m, name) for m in (endpoint, engine, files, node) if hasattr(m, name))
    message: BaseModel = model.from_wire(told)
    return message


STRICT = {"agent", "sampling", "budgets", "task", "artifact", "extras"}
"""Parts that stay as they are: a user's request is read strictly, and some mappings take any key."""
MAPPINGS = {"widths", "endpoints", "roles", "failed_kinds", "parts", "metrics", "timings", "breaks", "tool_calls"}


def grown(told: Any) -> Any:
    """The message with one more field in each part of it."""
    if isinstance(told, list):
        return [grown(one) for one in told]
    if not isinstance(told, dict):
        return told
    kept = STRICT | MAPPINGS
    return {name: value if name in kept else grown(value) for name, value in told.items()} | {"some_day": {"a": 1}}


def unset(sample: BaseModel, at: str = "") -> list[str]:
    """Fields of wire messages in it that have the default, and so may be dropped unseen."""
    found = []
    for name, field in type(sample).model_fields.items():
        value = getattr(sample, name)
        if field.exclude or name == "type":
            continue
        if not field.is_required() and value == field.default and (type(sample).__name__, name) not in DEFAULTS:
            found.append(f"{at}{type(sample).__name__}.{name}")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, base.WireMessage):
                found += unset(one, f"{at}{name}: ")
    return found


DEFAULTS = {("Identity", "protocol"), ("Welcome", "protocol"), ("Lease", "stage")}
"""Fields whose sample is the default."""


def _is_message(found: Any, module: str) -> bool:
    return isinstance(found, type) and issubclass(found, base.WireMessage) and found.__module__ == module

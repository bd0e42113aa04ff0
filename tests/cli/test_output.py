"""Output of `rollyard get` in each form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
import yaml

from rollyard.cli.jsonpath import jsonpath
from rollyard.cli.output import Table, align, show, table
from rollyard.core.errors import BadRequest
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support import make


def pool(name: str, namespace: str = "default", **status: Any) -> RolloutPool:
    made = datetime.now(UTC) - timedelta(hours=5)
    metadata = {"namespace": namespace, "creationTimestamp": made}
    return make.rollout_pool(name, status, metadata=metadata, replicas=2)


BUSY = pool(
    "a-longer-name",
    replicas={"desired": 2, "ready": 1},
    stages={"RUN": {"queued": 3, "inFlight": 4, "width": 8}},
    conditions=[
        {"type": "Ready", "status": "False", "reason": "Starting", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    ],
)


def test_a_table_has_its_columns_in_line() -> None:
    lines = table(RolloutPool, [pool("swe"), BUSY], wide=False, namespaces=False)
    assert [line.split() for line in lines] == [
        ["NAME", "READY", "UP-TO-DATE", "STATUS", "QUEUED", "INIT", "RUN", "EVAL", "AGE"],
        ["swe", "0/0", "0", "Unknown", "0", "0/0", "0/0", "0/0", "5h"],
        ["a-longer-name", "1/2", "0", "Starting", "3", "0/0", "4/8", "0/0", "5h"],
    ]
    assert len({line.index(word) for line, word in zip(lines, ("READY", "0/0", "1/2"), strict=True)}) == 1
    assert not any(line.endswith(" ") for line in lines)


def test_ready_is_never_full_for_a_pool_that_is_not_ready() -> None:
    """A node agent without a model server was shown as 1/1, beside the reason why nothing could run."""
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "NoInference",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    lacking = pool("swe", replicas={"desired": 1, "ready": 1, "updated": 1}, conditions=[condition])
    assert table(RolloutPool, [lacking], wide=False, namespaces=False)[1].split()[1:4] == ["0/1", "1", "NoInference"]
    whole = pool("swe", replicas={"desired": 1, "ready": 1}, conditions=[{**condition, "status": "True"}])
    assert table(RolloutPool, [whole], wide=False, namespaces=False)[1].split()[1] == "1/1"


def test_namespaces_and_wide_columns_are_shown_when_asked_for() -> None:
    found = table(RolloutPool, [pool("swe", "ml")], wide=False, namespaces=True)
    assert [line.split()[0] for line in found] == ["NAMESPACE", "ml"]
    policy = make.inference_pool(model={"path": "/models/tiny"})
    assert "/models/tiny" not in table(InferencePool, [policy], wide=False, namespaces=False)[1]
    assert "/models/tiny" in table(InferencePool, [policy], wide=True, namespaces=False)[1]


def test_rows_that_a_watch_adds_stand_in_line_with_those_before() -> None:
    rows = Table(RolloutPool, wide=False, namespaces=False)
    first, later = rows.lines([pool("swe"), BUSY]), rows.lines([pool("x")])
    assert len(later) == 1
    assert later[0].index("0/0") == first[0].index("READY")


def test_align_keeps_every_cell() -> None:
    assert align([]) == []
    assert align([["a", "bb"], ["ccc", ""]]) == ["a     bb", "ccc"]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_json_and_yaml_can_be_read_back(form: str, read: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show(RolloutPool, [BUSY], form, one=True)
    assert RolloutPool.model_validate(read(capsys.readouterr().out)) == BUSY
    show(RolloutPool, [BUSY, pool("swe")], form)
    found = read(capsys.readouterr().out)
    assert (found["kind"], [o["metadata"]["name"] for o in found["items"]]) == ("List", ["a-longer-name", "swe"])


def test_names_are_as_other_commands_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    show(RolloutPool, [pool("swe"), BUSY], "name")
    assert capsys.readouterr().out == "rolloutpool/swe\nrolloutpool/a-longer-name\n"


def test_an_unknown_form_names_those_there_are() -> None:
    with pytest.raises(click.UsageError, match="use wide, yaml, json, name or jsonpath"):
        show(RolloutPool, [], "xml")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{.spec.replicas}", "2"),
        ("{.metadata.name}", "a-longer-name"),
        ("name={.metadata.name};", "name=a-longer-name;"),
        ("{.status.conditions[0].reason}", "Starting"),
        ("{.status.conditions[*].type}", "Ready"),
        ("{.status.stages.RUN}", '{"queued": 3, "inFlight": 4, "width": 8}'),
        ("{.spec.suspend}", "false"),
        ("{.nothing.there}", ""),
        ("{.status.conditions[9].reason}", ""),
        ('{.status.conditions[?(@.type=="Ready")].reason}', "Starting"),
        ("{.status.conditions[?(@.type=='Nothing')].reason}", ""),
        ("{.status.stages[?(@.queued>2)].width}", "8"),
        ("{.status.stages.*.width}", "8"),
        ("{..reason}", "Starting"),
        ("{.status.conditions[-1:].type}", "Ready"),
        ("{.status['conditions'][0]['type','status']}", "Ready False"),
        ('{range .status.conditions[*]}{.type}={.status}{"\\n"}{end}', "Ready=False\n"),
        (".metadata.name", "a-longer-name"),
        ("{metadata.name}", "a-longer-name"),
    ],
)
def test_jsonpath_picks(template: str, found: str) -> None:
    assert jsonpath(BUSY.dump(), template) == found


@pytest.mark.parametrize(
    "template",
    [
        "{.a",
        "{end}",
        "{range .a}",
        "{.a[?(@.b==1 && @.c==2)]}",
        "{.a[x]}",
        "{.a[?(@.type==Ready)]}",
        "{.a b}",
    ],
)
def test_a_jsonpath_that_cannot_be_read_is_refused_and_answers_nothing(template: str) -> None:
    with pytest.raises(BadRequest, match="paths look like"):
        jsonpath(BUSY.dump(), template)


def test_jsonpath_over_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show(RolloutPool, [pool("a"), pool("b")], "jsonpath={.items[*].metadata.name}")
    assert capsys.readouterr().out == "a b"

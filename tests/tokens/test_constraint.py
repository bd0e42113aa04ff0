"""The parameter in which a constraint goes to each kind of engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollyard.core.errors import EndpointRefused
from rollyard.kinds.rollout import Sampling
from rollyard.tokens import sglang
from rollyard.tokens.constraint import Constraint, Kind, is_constrained
from rollyard.tokens.endpoint_dialects import COMPLETIONS, GENERATE
from rollyard.tokens.tool_calls.call_forms import text_form

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALLS = text_form("CALL")
CASES: list[tuple[Kind, Any, dict[str, Any], dict[str, Any]]] = [
    ("json_schema", SCHEMA, {"json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}),
    ("json_object", None, {"json_object": True}, {"json_schema": '{"type": "object"}'}),
    ("regex", "a|b", {"regex": "a|b"}, {"regex": "a|b"}),
    ("choice", ["a.", "b"], {"choice": ["a.", "b"]}, {"regex": "a\\.|b"}),
    ("grammar", 'root ::= "a"', {"grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
]


@pytest.mark.parametrize(("kind", "value", "vllm", "to_sglang"), CASES)
def test_each_engine_gets_its_own_names(kind: Kind, value: Any, vllm: Any, to_sglang: Any) -> None:
    sampling = Constraint(kind, value).applied_to(Sampling(extra={"more": 1}))
    assert is_constrained(sampling)
    assert not is_constrained(Sampling(extra={"more": 1}))
    assert COMPLETIONS.body("m", [1], sampling, 9, [2])["structured_outputs"] == vllm
    assert GENERATE.body("m", [1], sampling, 9, [2])["sampling_params"]["structured_outputs"] == vllm
    params = sglang.body("m", [1], sampling, 9, [2])["sampling_params"]
    assert params.items() >= {"more": 1, **to_sglang}.items()
    assert "structured_outputs" not in params


@pytest.mark.parametrize(("kind", "value", "vllm", "to_sglang"), CASES)
def test_with_tools_the_form_is_one_of_two(kind: Kind, value: Any, vllm: Any, to_sglang: Any) -> None:
    constraint = Constraint(kind, value, CALLS)
    assert constraint.name == f"{kind}_or_tool_calls"
    sampling = constraint.applied_to(Sampling())
    tag = COMPLETIONS.body("m", [1], sampling, 9, [2])["structured_outputs"]["structural_tag"]
    calls, form = json.loads(tag)["format"]["elements"]
    assert calls == CALLS
    assert form["type"] in ("json_schema", "regex", "or", "grammar")
    assert sglang.body("m", [1], sampling, 9, [2])["sampling_params"]["structural_tag"] == tag


def test_sglang_refuses_what_it_does_not_have() -> None:
    with pytest.raises(EndpointRefused, match="use json, regex, choice or grammar"):
        sglang.body("m", [1], Sampling(extra={"structured_outputs": {"whitespace_pattern": ""}}), 9, [2])

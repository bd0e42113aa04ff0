"""A constraint on the form of a turn, which the engine applies to the turn's tokens while it samples.

A constraint travels in `Sampling.extra`, as vLLM's parameter `structured_outputs`. The embedded engine has the same
parameter, and SGLang gets its own names for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.sampled_turn import THINK_ENDS

STRUCTURED = "structured_outputs"
MAX_WHITESPACE = 8
"""Greatest number of white space characters between two parts of JSON."""
Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "tool_calls"]
Form = Mapping[str, Any]
"""Part of a structural tag in vLLM's format (`{"type": "const_string", "value": ...}`)."""


@dataclass(frozen=True)
class Constraint:
    kind: Kind
    value: Any
    """A JSON schema, a regular expression, a list of texts, a grammar, or the form of the tool calls; None for
    `json_object`."""
    calls: Form | None = None
    """Form of the tool calls that the turn may consist of instead; None if it may not."""

    @property
    def name(self) -> str:
        """Name of the constraint in a trajectory (`Turn.constraint`)."""
        return f"{self.kind}_or_tool_calls" if self.calls is not None else self.kind

    def applied_to(self, sampling: Sampling) -> Sampling:
        return evolve(sampling, extra={**sampling.extra, STRUCTURED: self._parameter()})

    def _parameter(self) -> dict[str, Any]:
        if self.kind == "tool_calls":
            return _structural_tag(self.value)
        if self.calls is not None:
            return _structural_tag({"type": "or", "elements": [self.calls, self._form()]})
        name = {"json_schema": "json"}.get(self.kind, self.kind)
        return {name: True if self.kind == "json_object" else self.value}

    def _form(self) -> Form:
        match self.kind:
            case "json_schema":
                return json_form(self.value)
            case "json_object":
                return json_form({"type": "object"})
            case "regex":
                return {"type": "regex", "pattern": self.value}
            case "choice":
                return {"type": "or", "elements": [{"type": "const_string", "value": one} for one in self.value]}
        return {"type": self.kind, "grammar": self.value}


def json_form(schema: Mapping[str, Any]) -> Form:
    """Return the form of JSON in a structural tag. Small models would fill it with white space without a limit."""
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}


def has_form(constraint: Constraint, text: str) -> bool:
    """Return False if a complete turn clearly lacks its form. Schemas, patterns and grammars are not checked."""
    answer = text.rpartition(THINK_ENDS)[2].strip()
    if constraint.kind == "choice":
        return any(answer == one.strip() for one in constraint.value)
    if constraint.kind in ("regex", "grammar"):
        return True
    try:
        value = from_json(answer)
    except ValueError:
        return False
    return constraint.kind == "json_schema" or isinstance(value, dict)


def is_constrained(sampling: Sampling) -> bool:
    return STRUCTURED in sampling.extra or "response_format" in sampling.extra


def _structural_tag(form: Form) -> dict[str, Any]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}

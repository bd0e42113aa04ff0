"""Task of a rollout: its kind, and the fields of the kind."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import WireModel

F = TypeVar("F", bound=WireModel)


class Task(WireModel):
    """Item of a dataset. `kind` names the task handler; the other fields belong to the handler."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str = Field(min_length=1, max_length=64)

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def canonical(self) -> str:
        """Return the task as JSON. Equal tasks have equal texts."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """Name of the task in the reports and the rollouts of a check: 16 hexadecimal digits of its sha256."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    @property
    def image(self) -> str:
        """Name of the sandbox image; empty: the pool's default image. Server and node agent both ask here."""
        return _text((self.model_extra or {}).get("image"))

    @property
    def evaluator_image(self) -> str:
        """Name of the image of EVAL's sandbox; empty: that of RUN's sandbox."""
        evaluator = (self.model_extra or {}).get("evaluator")
        return _text(evaluator.get("image")) if isinstance(evaluator, dict) else ""

    @property
    def metadata(self) -> dict[str, JsonValue]:
        found = (self.model_extra or {}).get("metadata")
        return found if isinstance(found, dict) else {}

    @cached_property
    def _validated(self) -> dict[type[WireModel], Any]:
        return {}

    def fields_as(self, model: type[F]) -> F:
        """Return the fields as an object of this model, validated once. Raises Invalid with a cause for each wrong field."""
        if model not in self._validated:
            try:
                self._validated[model] = model.model_validate(self.fields)
            except ValidationError as error:
                causes = [Cause(".".join(["task", *map(str, e["loc"])]), e["msg"]) for e in error.errors()]
                listed = "; ".join(f"{c.field}: {c.message}" for c in causes)
                known = ", ".join(model.model_fields)
                raise Invalid(
                    f"the {self.kind} task is invalid: {listed} (its fields are {known})", causes=causes
                ) from None
        found: F = self._validated[model]
        return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

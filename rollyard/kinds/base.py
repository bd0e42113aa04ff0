"""Base models, and the metadata that every kind has. Fields of kinds are camelCase in YAML and JSON, and
snake_case in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import VERSION as PYDANTIC
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP = "rollyard.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = f"{GROUP}/allocations"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

M = TypeVar("M", bound=BaseModel)

DEFER_BUILD = tuple(map(int, PYDANTIC.split(".")[:2])) >= (2, 14)
"""Build a model's validator when the first object is made. No process uses all models, and building them takes a tenth of
a start. In older releases of pydantic, two threads that make the first object at once fail."""


class KindModel(BaseModel):
    """Part of a kind. Unknown fields are errors; names are camelCase in YAML and JSON."""

    # `use_attribute_docstrings` is not set, because it makes the import of all kinds 0.1 s slower in each process of
    # ours. `schema.fields.docstrings` reads the docstrings when they are needed.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=DEFER_BUILD
    )


class StatusModel(KindModel):
    """Part of a status. Unknown fields come from another release and are dropped. If the other release runs again, its
    reconcilers write these fields again."""

    model_config = ConfigDict(extra="ignore")


class WireModel(BaseModel):
    """REST body, or part of a message, in snake_case. Unknown fields are errors, so a misspelt field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)


def evolve(model: M, /, **changes: Any) -> M:
    """Return a shallow copy of a model with the given fields changed. Values are not validated, because they come from
    code.

    `model_copy(update=...)` would accept a misspelt field.

    Raises:
        TypeError: a field that the model does not have.
    """
    fields = type(model).__pydantic_fields__
    if not changes.keys() <= fields.keys():
        unknown = ", ".join(sorted(changes.keys() - fields.keys()))
        raise TypeError(f"{type(model).__name__} has no field {unknown}; its fields are {', '.join(fields)}")
    return model.model_copy(update=changes)


def shared(default: M) -> M:
    """Return a field whose default is the object `default` itself, not a copy. pydantic would make a deep copy of a
    plain default for each new model."""
    field: M = Field(default_factory=lambda: default)
    return field


class OwnerReference(KindModel):
    api_version: str = API_VERSION
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    """True for the owner that manages the object; at most one owner of an object has it."""
    block_owner_deletion: bool | None = None
    """Kept for clients of Kubernetes. Without an effect here, because an owner never waits for its dependents."""


class ObjectMeta(KindModel):
    # Foreign metadata that kubectl sends (managedFields, selfLink, ...) is dropped without an error.
    model_config = ConfigDict(extra="ignore")

    name: str = Field(pattern=NAME_PATTERN, max_length=63)
    """Name, unique within the namespace: lower case letters, digits and '-', at most 63 characters."""
    namespace: str = Field(default="default", pattern=NAME_PATTERN, max_length=63)
    """Namespace. Namespaces group objects; they do not isolate users from each other."""
    uid: str = ""
    generation: int = 0
    """Number that grows with each change of the spec."""
    resource_version: str = ""
    """Opaque version; it changes with each change of the object."""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    """Time at which the deletion began. The object disappears with its last finalizer."""
    finalizers: list[str] = []
    """Programs that still have work to do before the object disappears. Each removes its own name."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    """Objects of the same namespace with which this object is deleted, when the last of them is gone."""


UNKNOWN_REASON = "Unknown"
"""Word of a reason that came as a text without a word."""


class Reason(NamedTuple):
    """Reason as a CamelCase word, which programs compare, and a message for people."""

    word: str
    message: str = ""

    def __str__(self) -> str:
        named = self.word != UNKNOWN_REASON
        return f"{self.word}: {self.message}" if self.message and named else self.message or self.word

    @classmethod
    def parse(cls, text: str) -> Reason:
        """Return the reason whose `str` is `text`. A text without a word becomes the message of UNKNOWN_REASON."""
        found = _REASON.fullmatch(text)
        return cls(found[1], found[2] or "") if found else cls(UNKNOWN_REASON, text)


_REASON = re.compile(r"([A-Z][A-Za-z0-9]*)(?:: (.*))?", re.DOTALL)

ReasonText = Annotated[
    Reason,
    BeforeValidator(lambda given: Reason.parse(given) if isinstance(given, str) else given),
    PlainSerializer(str),
    WithJsonSchema({"type": "string"}),
]
"""Reason that is a text in JSON, as `Word` or `Word: message`."""


class Condition(StatusModel):
    """Fact about an object, with the generation at which it was observed."""

    type: str
    status: Literal["True", "False", "Unknown"]
    observed_generation: int = 0
    last_transition_time: datetime
    """Time of the last change of `status`."""
    reason: str
    message: str = ""

    @property
    def why(self) -> Reason:
        return Reason(self.reason, self.message)


class KindObject(KindModel):
    """Stored object. Each kind is a subclass, which adds its fields and its names in REST paths and commands."""

    PLURAL: ClassVar[str]
    SINGULAR: ClassVar[str]
    SHORT: ClassVar[tuple[str, ...]] = ()
    USER_WRITTEN: ClassVar[bool] = False

    api_version: Literal["rollyard.dev/v1alpha1"] = "rollyard.dev/v1alpha1"
    kind: str
    metadata: ObjectMeta

    @classmethod
    def key_of(cls, namespace: str, name: str) -> ObjectKey:
        return ObjectKey(kind=cls.model_fields["kind"].default, namespace=namespace, name=name)

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(kind=self.kind, namespace=self.metadata.namespace, name=self.metadata.name)

    def dump(self) -> dict[str, Any]:
        """Return the JSON form in camelCase, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def dump_metadata(self) -> dict[str, Any]:
        """Return the field `metadata` of `dump`, in a fraction of its time."""
        return self.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObjectKey(BaseModel):
    """Key of one object. A reconcile request consists of this key only."""

    model_config = ConfigDict(frozen=True)

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.namespace}/{self.name}"


class ConditionUpdate(NamedTuple):
    """New state of a condition, without times."""

    type: str
    status: bool | None
    """Status of the condition; None if it is unknown."""
    reason: str
    message: str = ""


def set_conditions(
    conditions: list[Condition], updates: Iterable[ConditionUpdate], *, generation: int, now: datetime
) -> list[Condition]:
    """Return the list with the updates. The `last_transition_time` of a condition changes only with its `status`."""
    found = {c.type: c for c in conditions}
    for type, status, reason, message in updates:
        word: Literal["True", "False", "Unknown"] = "Unknown" if status is None else "True" if status else "False"
        before = found.pop(type, None)
        found[type] = Condition(
            type=type,
            status=word,
            observed_generation=generation,
            last_transition_time=before.last_transition_time if before and before.status == word else now,
            reason=reason,
            message=message,
        )
    return list(found.values())


def get_condition(conditions: list[Condition], type: str) -> Condition | None:
    return next((c for c in conditions if c.type == type), None)

"""Label and field selectors of a list or watch, in kubectl's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable

from rollyard.core.errors import BadRequest
from rollyard.kinds.base import KindObject
from rollyard.kinds.event import Event

Predicate = Callable[[KindObject], bool]
_FIELDS: dict[str, Callable[[KindObject], str]] = {
    "metadata.name": lambda o: o.metadata.name,
    "metadata.namespace": lambda o: o.metadata.namespace,
    "involvedObject.kind": lambda o: o.involved_object.kind if isinstance(o, Event) else "",
    "involvedObject.name": lambda o: o.involved_object.name if isinstance(o, Event) else "",
    "involvedObject.namespace": lambda o: o.involved_object.namespace if isinstance(o, Event) else "",
    "involvedObject.uid": lambda o: o.involved_object.uid if isinstance(o, Event) else "",
    "involvedObject.apiVersion": lambda o: o.api_version,
    "type": lambda o: o.type if isinstance(o, Event) else "",
    "reason": lambda o: o.reason if isinstance(o, Event) else "",
}
_FIELDS |= {name.replace("involvedObject", "regarding"): read for name, read in _FIELDS.items()}
_SET = re.compile(r"^(?P<key>[^\s!=]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")


def selector(labels: str, fields: str) -> Predicate:
    """Return a predicate that is true if every term is true. Raises BadRequest for a wrong term or an unknown field."""
    terms = [_label(t) for t in _split(labels)] + [_field(t) for t in _split(fields)]
    return lambda o: all(term(o) for term in terms)


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    return [t.strip() for t in re.split(r",(?![^(]*\))", text) if t.strip()]


def _label(term: str) -> Predicate:
    if match := _SET.match(term):
        key, values = match["key"], {v.strip() for v in match["values"].split(",")}
        if match["op"] == "in":
            return lambda o: o.metadata.labels.get(key) in values
        return lambda o: o.metadata.labels.get(key) not in values
    if "!=" in term:
        key, _, value = term.partition("!=")
        return lambda o: o.metadata.labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, value = re.split("==?", term, maxsplit=1)
        return lambda o: o.metadata.labels.get(key.strip()) == value.strip()
    if term.startswith("!"):
        return lambda o: term[1:] not in o.metadata.labels
    if re.fullmatch(r"[A-Za-z0-9._/-]+", term):
        return lambda o: term in o.metadata.labels
    raise BadRequest(f"cannot read the label selector {term!r}; write key=value, key!=value, key in (a,b), key or !key")


def _field(term: str) -> Predicate:
    negated = "!=" in term
    name, value = re.split("!=|==?", term, maxsplit=1) if "=" in term else (term, "")
    read = _FIELDS.get(name.strip())
    if read is None:
        raise BadRequest(f"field label not supported: {name.strip()}")
    return lambda o: (read(o) == value.strip()) is not negated

"""JSON patches by RFC 6902, and merge patches by RFC 7396."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from rollyard.core.errors import BadRequest, Invalid

MAX_OPERATIONS = 10_000
"""Greatest number of operations in a JSON patch, as in the API server of Kubernetes."""
MAX_DEPTH = 200
MAX_COPIED_BYTES = 3 << 20
"""Greatest size of all copies in a JSON patch. A few copies of copies would fill the memory."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Merge: objects are merged, null removes a field, and any other value replaces the old value."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Any, operations: Any) -> Any:
    """Return `target` after the operations, in order.

    Raises BadRequest for a patch that cannot be read, and Invalid if an operation does not fit the target.
    """
    if not isinstance(operations, list):
        raise BadRequest(
            "a JSON patch must be a list of operations; to merge an object, send application/merge-patch+json"
        )
    if len(operations) > MAX_OPERATIONS:
        raise BadRequest(f"the patch has {len(operations)} operations; at most {MAX_OPERATIONS} are allowed")
    holder, copied = {"": copy.deepcopy(target)}, 0
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict):
            raise BadRequest(f"operation {number} must be an object with op and path")
        try:
            copied += _apply(holder, operation)
        except _Unfit as error:
            raise Invalid(f"operation {number} of the patch ({operation.get('op')}) failed: {error}") from None
        except RecursionError:
            raise _too_deep() from None
        if copied > MAX_COPIED_BYTES:
            raise Invalid(f"the patch copies more than {MAX_COPIED_BYTES} bytes")
    if not _is_shallow(holder, MAX_DEPTH):
        raise _too_deep()
    return holder.get("")


def _too_deep() -> Invalid:
    return Invalid(f"the patch nests values more than {MAX_DEPTH} levels deep")


def _is_shallow(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_shallow(part, levels - 1) for part in parts)


class _Unfit(Exception):
    """The operation does not fit the target."""


def _apply(holder: dict[str, Any], operation: Mapping[str, Any]) -> int:
    """Apply one operation to `holder`, whose field `""` is the target. Return the number of copied bytes."""
    path = _tokens(operation, "path")
    match operation.get("op"):
        case "add":
            _add(holder, path, _value(operation))
        case "remove":
            _remove(holder, path)
        case "replace":
            _remove(holder, path)
            _add(holder, path, _value(operation))
        case "move":
            source = _tokens(operation, "from")
            if path[: len(source)] == source and path != source:
                raise _Unfit("a value cannot be moved into itself")
            _add(holder, path, _remove(holder, source))
        case "copy":
            found = _get(holder, _tokens(operation, "from"))
            _add(holder, path, copy.deepcopy(found))
            return len(to_json(found))
        case "test":
            if not _equal(_get(holder, path), _value(operation)):
                raise _Unfit(f"the value at {operation['path']} is another one")
        case other:
            raise BadRequest(f"unknown operation {str(other)[:40]!r}; write add, remove, replace, move, copy or test")
    return 0


def _tokens(operation: Mapping[str, Any], name: str) -> list[str]:
    """Return the parts of a JSON pointer (RFC 6901), below the field `""` of the holder."""
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise BadRequest(f"each operation needs `{name}`, a JSON pointer such as /metadata/labels/team")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")]


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise BadRequest(f"the operation {operation.get('op')} needs a `value`")
    return copy.deepcopy(operation["value"])


def _get(holder: Any, path: list[str]) -> Any:
    for token in path:
        holder = holder[_key(holder, token)]
    return holder


def _key(holder: Any, token: str, *, end: bool = False) -> Any:
    """Return the key or index of an existing value. With `end`, also the index behind the last item, and a new key."""
    if isinstance(holder, list):
        if token == "-" and end:
            return len(holder)
        if (
            token.isdecimal()
            and (token == "0" or token[0] != "0")
            and len(token) < 10
            and int(token) < len(holder) + end
        ):
            return int(token)
    elif isinstance(holder, dict) and (end or token in holder):
        return token
    raise _Unfit(f"there is no {token[:60]!r} at this place")


def _add(holder: Any, path: list[str], value: Any) -> None:
    parent = _get(holder, path[:-1])
    key = _key(parent, path[-1], end=True)
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        parent[key] = value


def _remove(holder: Any, path: list[str]) -> Any:
    parent = _get(holder, path[:-1])
    return parent.pop(_key(parent, path[-1]))


def _equal(a: Any, b: Any) -> bool:
    """Compare as JSON: true is not 1, and 1 is 1.0."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return isinstance(a, bool) is isinstance(b, bool) and bool(a == b)

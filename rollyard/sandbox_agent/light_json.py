"""JSON by the C functions of the standard library's `json`. Importing `json` itself takes as long as starting Python, because
it imports `re` and `enum`."""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Reading:
    """The arguments of the scanner, as attributes (json.decoder.JSONDecoder)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _unknown(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


_scan = _json.make_scanner(_Reading)  # type: ignore[arg-type]
_encode = _json.make_encoder(None, _unknown, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def encode(value: Any) -> bytes:
    return "".join(_encode(value, 0)).encode()


def decode(data: bytes | memoryview) -> Any:
    """Raises ValueError if the data is not JSON."""
    try:
        return _scan(str(data, "utf-8"), 0)[0]
    except StopIteration:
        raise ValueError("this is not JSON") from None

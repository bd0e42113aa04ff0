"""Reading and writing of safetensors files in memory. A file has named arrays of one dimension, and metadata.

The file begins with the length of the header in eight bytes. Then come the header, in JSON, and the elements of the
arrays. The length and the elements are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

Array = NDArray[Any]
MAX_HEADER_BYTES = 100_000_000
"""Greatest size of a header that the safetensors library accepts."""
_TYPES = {"U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}


def write_arrays(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return the file. Raises ValueError if its header is longer than MAX_HEADER_BYTES.

    The arrays with the widest numbers come first, so that every array is aligned.
    """
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, array in ordered:
        end = position + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": [len(array)], "data_offsets": [position, end]}
        position = end
    text = to_json(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the header of a safetensors file has at most {MAX_HEADER_BYTES} bytes; this one has {len(text)}"
        )
    return b"".join(
        [len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(array).data for _, array in ordered)]
    )


def read_arrays(
    data: bytes | bytearray | memoryview, names: Iterable[str]
) -> tuple[dict[str, Array], Mapping[str, str]]:
    """Return the arrays with these names, and the metadata. The arrays share the memory of `data`.

    Raises ValueError, LookupError, TypeError or OverflowError if the file is damaged or lacks one of the arrays.
    """
    size = int.from_bytes(data[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(data)):
        raise ValueError("its header is longer than the file")
    header: dict[str, Any] = json.loads(bytes(data[8 : 8 + size]))

    def read(name: str) -> Array:
        entry = header[name]
        (count,), start = entry["shape"], entry["data_offsets"][0]
        if count < 0 or start < 0:
            raise ValueError(f"{name} has a negative place")
        return np.frombuffer(data, _TYPES[entry["dtype"]], count, 8 + size + start)

    return {name: read(name) for name in names}, header["__metadata__"]

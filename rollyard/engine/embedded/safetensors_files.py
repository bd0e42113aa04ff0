"""Safetensors files: the tensors in a folder, and their values as float32."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.core.errors import Invalid

Array = NDArray[np.float32]
STORED: dict[str, type[Any]] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
"""Types of stored numbers, and the numpy types that read them. numpy has no bfloat16, so BF16 is read as uint16: the
upper half of a float32."""
DTYPES = "BF16, F16 or F32"


@dataclass(frozen=True)
class Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> Array:
        if self.dtype not in STORED:
            raise Invalid(f"{self.path}: tensors must be {DTYPES}, not {self.dtype}")
        count, stored = math.prod(self.shape), np.dtype(STORED[self.dtype])
        numbers = np.empty(0, stored)
        if self.offset + count * stored.itemsize <= self.path.stat().st_size:
            numbers = np.fromfile(self.path, stored, count, offset=self.offset)
        if numbers.size != count:
            raise Invalid(f"{self.path} is cut short; copy it again")
        return as_float32(numbers).reshape(self.shape)


def as_float32(numbers: NDArray[Any]) -> Array:
    """Convert numbers of a type in `STORED` to float32."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def shards(folder: Path) -> list[Path]:
    """Return the safetensors files with a folder's weights. Raises Invalid if a file is missing or the index is
    damaged."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists():
        try:
            names = {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Invalid(f"{index} is not an index of safetensors files; copy it again") from None
    paths = [folder / name for name in sorted(names)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise Invalid(f"{missing[0]} is missing; weights are read from model.safetensors or the files of its index")
    return paths


def entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a safetensors file's header. The file begins with eight bytes for the length of the header;
    then come the header, in JSON, and the values. Raises Invalid if the header is damaged."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            if size > os.fstat(file.fileno()).st_size:
                raise ValueError("the header is longer than the file")
            header: dict[str, Any] = json.loads(file.read(size))
            found = {name: _entry(path, given, 8 + size) for name, given in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise Invalid(f"{path} is not a safetensors file; copy it again") from None
    yield from found.items()


def _entry(path: Path, given: Any, begin: int) -> Entry:
    """Read one entry of a header. `begin`: place of the first value in the file."""
    shape, offset = tuple(given["shape"]), given["data_offsets"][0]
    if any(type(number) is not int or number < 0 for number in (*shape, offset)):
        raise ValueError("a size or an offset is no natural number")
    return Entry(path, str(given["dtype"]), shape, begin + offset)

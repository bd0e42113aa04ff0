"""Headers of safetensors files: which files hold a folder's tensors, and the place, type and shape of each tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import FileMissing, Invalid
from rollyard.core.regular_file import open_regular
from rollyard.model_folder.json_file import parse_object, read_object

MAX_HEADER_BYTES = 100_000_000
"""Greatest length of a header, as in the library safetensors."""
MAX_INDEX_BYTES = 64 << 20
"""Greatest size of an index. The index of a model with 700 billion weights has 9 MB."""
STORED_TYPES, TYPES_TEXT = ("BF16", "F16", "F32"), "BF16, F16 or F32"
"""Types of stored numbers that the embedded engine reads."""


@dataclass(frozen=True)
class Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def shards(folder: Path) -> list[Path]:
    """Return the safetensors files with a folder's weights. Raises FileMissing, and Invalid if the index is damaged."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists():
        try:
            names = {str(name) for name in read_object(index, MAX_INDEX_BYTES)["weight_map"].values()}
        except (Invalid, KeyError, AttributeError):
            raise Invalid(f"{index} is not an index of safetensors files; copy it again") from None
    paths = [folder / name for name in sorted(names)]
    if alien := next((path for path in paths if path.parent != folder), None):
        raise Invalid(f"{index} names {alien}, which is in another folder; all weights must be in {folder}")
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise FileMissing(f"{missing[0]} is missing; weights are read from model.safetensors or the files of its index")
    return paths


def entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a safetensors file's header. The file begins with eight bytes for the length of the header;
    then come the header, in JSON, and the values. Raises OSError, and Invalid if the header is damaged."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            if size > min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size):
                raise ValueError("the header is longer than the file")
            header = parse_object(file.read(size), str(path))
            found = {name: _entry(path, given, 8 + size) for name, given in header.items() if name != "__metadata__"}
        except (Invalid, ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise Invalid(f"{path} is not a safetensors file; copy it again") from None
    yield from found.items()


def _entry(path: Path, given: Any, begin: int) -> Entry:
    """Read one entry of a header. `begin`: place of the first value in the file."""
    shape, offset = tuple(given["shape"]), given["data_offsets"][0]
    if any(type(number) is not int or number < 0 for number in (*shape, offset)):
        raise ValueError("a size or an offset is not a natural number")
    return Entry(path, str(given["dtype"]), shape, begin + offset)

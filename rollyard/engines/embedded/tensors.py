"""Safetensors files: which tensors a folder holds, and their numbers as float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.errors import Invalid

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> Array:
        count = int(np.prod(self.shape))
        if self.dtype == "BF16":
            # numpy has no bfloat16: it is the upper half of a float32
            halves = np.fromfile(self.path, np.uint16, count, offset=self.offset)
            flat = (halves.astype(np.uint32) << 16).view(np.float32)
        elif self.dtype in ("F16", "F32"):
            dtype = np.float16 if self.dtype == "F16" else np.float32
            flat = np.fromfile(self.path, dtype, count, offset=self.offset).astype(np.float32)
        else:
            raise Invalid(f"{self.path}: tensors must be BF16, F16 or F32, not {self.dtype}")
        if flat.size != count:
            raise Invalid(f"{self.path} is cut short; copy it again")
        return flat.reshape(self.shape)


def shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
    paths = [folder / name for name in sorted(names)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise Invalid(f"{missing[0]} is missing; weights are read from model.safetensors or the files of its index")
    return paths


def entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """The header of a safetensors file: eight bytes of length, then JSON; the numbers follow it."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            header: dict[str, dict[str, Any]] = json.loads(file.read(size))
        except ValueError:
            raise Invalid(f"{path} is no safetensors file; copy it again") from None
    for name, tensor in header.items():
        if name != "__metadata__":
            yield name, Entry(path, tensor["dtype"], tuple(tensor["shape"]), 8 + size + tensor["data_offsets"][0])

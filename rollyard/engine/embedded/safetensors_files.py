"""Values of the tensors in safetensors files, as float32."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.core.errors import Invalid
from rollyard.core.regular_file import open_regular
from rollyard.model_folder.safetensors_header import TYPES_TEXT, Entry

Array = NDArray[np.float32]
STORED: dict[str, type[Any]] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
"""Types of stored numbers, and the numpy types that read them. numpy has no bfloat16, so BF16 is read as uint16: the
upper half of a float32."""


def read_tensor(entry: Entry) -> Array:
    """Read the values of a tensor. Raises OSError, and Invalid for a file that is cut short or for another type."""
    if entry.dtype not in STORED:
        raise Invalid(f"{entry.path}: tensors must be {TYPES_TEXT}, not {entry.dtype}")
    stored = np.dtype(STORED[entry.dtype])
    with open_regular(entry.path) as file:
        numbers = np.empty(0, stored)
        if entry.offset + entry.count * stored.itemsize <= file.seek(0, os.SEEK_END):
            file.seek(entry.offset)
            numbers = np.fromfile(file, stored, entry.count)
    if numbers.size != entry.count:
        raise Invalid(f"{entry.path} is cut short; copy it again")
    return as_float32(numbers).reshape(entry.shape)


def as_float32(numbers: NDArray[Any]) -> Array:
    """Convert numbers of a type in `STORED` to float32."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)

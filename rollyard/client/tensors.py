"""Columns as torch tensors."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from rollyard.trajectory.columns import Columns

if TYPE_CHECKING:
    import torch


def tensors(columns: Columns) -> dict[str, torch.Tensor]:
    """Return all arrays but those of JSON texts, as tensors of the same types, by name. A read-only array is copied."""
    import torch

    names = [field.name for field in fields(columns) if "json" not in field.name]
    arrays = {name: array for name in names if isinstance(array := getattr(columns, name), np.ndarray)}
    return {name: torch.from_numpy(a if a.flags.writeable else a.copy()) for name, a in arrays.items()}

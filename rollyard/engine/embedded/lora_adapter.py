"""LoRA adapters in PEFT's layout. An adapter changes a weight W to W + B A * alpha / r (Hu et al. 2021).

With `use_rslora`, the term is divided by sqrt(r) instead of r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.safetensors_files import Array, read_tensor
from rollyard.model_folder.json_file import read_object, shown
from rollyard.model_folder.safetensors_header import Entry, entries

FILE, PREFIX = "adapter_model.safetensors", "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
PLAIN: dict[str, Any] = {
    "use_dora": False,
    "bias": "none",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""Fields of `adapter_config.json`. Each must have the value given here, be null, or be absent."""


@dataclass(frozen=True)
class Adapter:
    folder: Path
    scale: float
    targets: frozenset[str]
    """Names of the weights that the adapter changes."""
    _entries: dict[str, Entry]

    def added_to(self, name: str, weight: Array) -> Array:
        """Return the weight [outputs, inputs] plus the adapter's term, or an untargeted weight as it is. Raises Invalid
        when the shapes do not match."""
        if name not in self.targets:
            return weight
        stem = PREFIX + name.removesuffix(".weight")
        a, b = read_tensor(self._entries[stem + A]), read_tensor(self._entries[stem + B])
        if a.ndim != 2 or b.ndim != 2 or (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
            raise Invalid(
                f"{self.folder}: {name} is {list(weight.shape)}, but the adapter has {b.shape} times {a.shape}"
            )
        added: Array = weight + (b @ a) * weight.dtype.type(self.scale)
        return added


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter. Raises Invalid if the folder has no adapter, or if the adapter cannot be merged."""
    try:
        raw = read_object(folder / "adapter_config.json")
        found = dict(entries(folder / FILE))
    except (OSError, Invalid) as error:
        raise Invalid(f"{folder} contains no LoRA adapter (adapter_config.json, {FILE}): {error}") from None
    for field, only in PLAIN.items():
        if raw.get(field) not in (only, None):
            raise Invalid(f"{folder}: {field} must be {shown(only)}, not {shown(raw[field])}")
    targets = {name.removeprefix(PREFIX).removesuffix(A) for name in found if name.endswith(A)}
    strange = found.keys() - {PREFIX + target + end for target in targets for end in (A, B)}
    if strange or not targets or 2 * len(targets) != len(found):
        raise Invalid(
            f"{folder}: {FILE} must contain only pairs of lora_A and lora_B; it contains {sorted(strange)[:1] or 'none'}"
        )
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float)):
        raise Invalid(
            f"{folder}: adapter_config.json must contain `r`, an integer of at least 1, and the number `lora_alpha`"
        )
    scale = alpha / (math.sqrt(rank) if raw.get("use_rslora") else rank)
    return Adapter(folder, scale, frozenset(f"{target}.weight" for target in targets), found)

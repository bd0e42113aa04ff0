"""Field of an allocation's template that a refusal of sbatch is about."""

from __future__ import annotations

from rollyard.kinds.allocation import AllocationTemplate

FIELDS = {
    "invalid feature": ("constraint",),
    "invalid account": ("account", "partition"),
    "invalid partition": ("partition",),
    "invalid qos": ("qos",),
    "invalid license": ("licenses",),
    "invalid generic resource": ("gres", "gpus_per_node", "gpu_type"),
    "requested reservation": ("reservation",),
    "requested time limit": ("time_limit",),
    "node configuration is not available": ("cpus_per_task", "memory", "gpus_per_node", "constraint", "nodelist"),
}
"""Part of Slurm's words, in small letters -> fields that may have caused them. The words are those of `slurm_strerror`."""


def refused_fields(words: str, template: AllocationTemplate) -> str:
    """Return these fields of the template that are given, with their values, as in a manifest; empty if none is known."""
    names = next((fields for part, fields in FIELDS.items() if part in words.lower()), ())
    given = template.model_dump(include=set(names), exclude_defaults=True, by_alias=True, mode="json")
    return ", ".join(f"{name}: {value}" for name, value in given.items())

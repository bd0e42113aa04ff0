"""List of models of a model server: the answer of `GET /v1/models`."""

from __future__ import annotations

from typing import Any

MALFORMED_LIST = (KeyError, TypeError, AttributeError)
"""Exceptions that reading a malformed list raises."""


def listed_context(models: Any, model: str | None = None) -> int | None:
    """Return the length of a model's context in tokens; None if the list does not have it. Without `model` the first model
    counts. Raises MALFORMED_LIST."""
    lengths = [one.get("max_model_len") for one in models["data"] if model in (None, one["id"])]
    return lengths[0] if lengths and isinstance(lengths[0], int) else None

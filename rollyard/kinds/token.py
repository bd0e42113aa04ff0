"""Rotation of the server's tokens, as `/v1/tokens/rotation` takes and answers it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MAX_OVERLAP_SECONDS = 30 * 86_400


class RotationRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    overlap_seconds: float = Field(default=86_400.0, ge=0, le=MAX_OVERLAP_SECONDS)
    """Time for which earlier tokens stay valid. With 0 they end at once; jobs follow in either case."""


class RotationResult(BaseModel):
    token: str
    """New token of an administrator."""
    jobs: int
    """Number of jobs that got a new token."""
    earlier_until: float
    """Unix seconds up to which earlier tokens are valid."""

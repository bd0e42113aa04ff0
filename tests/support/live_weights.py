"""A pool's weights in tests: created, served, and observed by the sampled tokens."""

from __future__ import annotations

import shutil
from itertools import groupby
from pathlib import Path

import numpy as np

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.trajectory import Trajectory

POLICY = ObjectKey(kind="InferencePool", namespace="default", name="policy")


def other_weights(model: Path, folder: Path, seed: int = 1, amount: float = 0.2) -> Path:
    """Copy the model, with every number changed by a random share of itself. With a tenth of that it still solves its
    tasks."""
    folder.mkdir()
    for file in model.iterdir():
        shutil.copy(file, folder / file.name)
    raw = (model / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    numbers = (np.frombuffer(raw[start:], np.uint16).astype(np.uint32) << 16).view(np.float32)
    moved = numbers * (1 + amount * np.random.default_rng(seed).standard_normal(numbers.shape, np.float32))
    halves = (moved.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    (folder / "model.safetensors").write_bytes(raw[:start] + halves.tobytes())
    return folder


async def pool_of(client: AsyncClient) -> InferencePool:
    found = await client.get(POLICY)
    assert isinstance(found, InferencePool)
    return found


async def serves(client: AsyncClient, version: str, count: int) -> bool:
    """Return whether so many endpoints are ready, all with this version, which is the current one."""
    pool = await pool_of(client)
    fact = get_condition(pool.status.conditions, "WeightsCurrent")
    ready = [e.weights_version for e in pool.status.endpoints if e.ready]
    return ready == [version] * count and fact is not None and fact.status == "True"


async def current_version(client: AsyncClient) -> str:
    current = (await pool_of(client)).status.weights.current
    assert current is not None
    return current.version


def versions(trajectory: Trajectory) -> list[str]:
    """List the versions of the sampled tokens in order, each run of one version once."""
    sampled = [v for s in trajectory.segments for v in s.weights_version if v is not None]
    return [version for version, _ in groupby(sampled)]


def crossings(trajectory: Trajectory) -> list[tuple[str, str]]:
    """List the versions on both sides of each boundary within a turn."""
    return [
        (one, other)
        for s in trajectory.segments
        for one, other in zip(s.weights_version, s.weights_version[1:], strict=False)
        if one is not None and other is not None and one != other
    ]

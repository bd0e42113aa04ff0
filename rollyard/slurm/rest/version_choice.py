"""Chooses the version of slurmrestd's API from the OpenAPI description that slurmrestd serves. Pure.

Codec for v0.0.38, which Slurm 22.05 to 23.11 has. Pure.

Values are plain numbers or words. A missing value is null, and a missing number may be negative. Only an exit code from
accounting is an object.

Codec for v0.0.40 and later versions, which Slurm 23.11 to 26.05 have. Pure.

A number is an object `{set, infinite, number}`. States and flags are lists of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.core.errors import SlurmUnreachable
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Partition
from rollyard.slurm.rest.codec import Body, Codec, names

FLAGS = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RESV_DEL_HOLD",
    "SIGNALING",
    "POWER_UP_NODE",
)
"""Flags that squeue shows in place of a job's state. If several flags are set, the first one in this list is used."""


@dataclass(frozen=True)
class NewCodec(Codec):
    column = 1

    def number(self, value: Any) -> int | None:
        if not isinstance(value, dict):
            return None if value is None else int(value)
        return int(value["number"]) if value["set"] and not value["infinite"] else None

    def state(self, value: Any) -> JobState:
        words = [value] if isinstance(value, str) else list(value)
        return JobState.read(next((flag for flag in FLAGS if flag in words), words[0] if words else ""))

    def exit_code(self, value: Any, state: JobState) -> int | None:
        signal = self.number(value["signal"]["id"])
        return 128 + signal if signal else self.number(value["return_code"])

    def environment(self, variables: Mapping[str, str]) -> object:
        return [f"{name}={value}" for name, value in variables.items()]

    def release(self, body: Body) -> str:
        return str(body["meta"]["slurm"]["release"])

    def node_state(self, record: Body) -> str:
        return "+".join(record["state"])

    def features(self, record: Body) -> frozenset[str]:
        return frozenset(record["features"])

    def partition(self, record: Body, nodes: frozenset[str]) -> Partition:
        minutes = self.number(record["maximums"]["time"])
        return Partition(
            name=record["name"],
            up="UP" in record["partition"]["state"],
            nodes=nodes,
            default="DEFAULT" in record["flags"],
            max_seconds=None if minutes is None else minutes * 60,
            max_nodes=self.number(record["maximums"]["nodes"]),
            accounts=names(record["accounts"]["allowed"]),
            qos=names(record["qos"]["allowed"]),
        )

    def changed_at(self, body: Body) -> int | None:
        return self.number(body.get("last_update"))

    def signal_flags(self) -> Mapping[str, str]:
        return {"flags": "BATCH_JOB"}


@dataclass(frozen=True)
class OldCodec(Codec):
    column = 0

    def number(self, value: Any) -> int | None:
        return None if value is None or int(value) < 0 else int(value)

    def state(self, value: Any) -> JobState:
        return JobState.read(value)

    def exit_code(self, value: Any, state: JobState) -> int | None:
        if isinstance(value, dict):
            return self._accounted_exit_code(value, state)
        status = int(value)
        return 128 + (status & 0x7F) if status & 0x7F else status >> 8

    def _accounted_exit_code(self, value: Body, state: JobState) -> int | None:
        if value["status"] == "SIGNALED":
            return 128 + int(value["signal"]["signal_id"])
        code = int(value["return_code"] or 0)
        # Slurm 22.05 reports 0 and SUCCESS even for a job that failed with exit code 7.
        return None if code == 0 and state is JobState.FAILED else code

    def environment(self, variables: Mapping[str, str]) -> object:
        return dict(variables)

    def release(self, body: Body) -> str:
        return str(body["meta"]["Slurm"]["release"])

    def node_state(self, record: Body) -> str:
        return "+".join([record["state"], *record["state_flags"]])

    def features(self, record: Body) -> frozenset[str]:
        return names(record["features"]) or frozenset()

    def partition(self, record: Body, nodes: frozenset[str]) -> Partition:
        minutes = self.number(record["max_time_limit"])
        return Partition(
            name=record["name"],
            up=record["state"] == "UP",
            nodes=nodes,
            default="default" in record["flags"],
            max_seconds=None if minutes is None else minutes * 60,
            max_nodes=self.number(record["maximum_nodes_per_job"]),
            accounts=names(record["allowed_accounts"]),
            qos=names(record["allowed_qos"]),
        )

    def changed_at(self, body: Body) -> int | None:
        return None

    def signal_flags(self) -> Mapping[str, str]:
        return {}


OLDEST, FIRST_OF_NOW, LAST_TRIED = 38, 40, 45
"""Supported versions: v0.0.38 (Slurm 22.05 to 23.11), and v0.0.40 or later (from Slurm 23.11 on). The newest tested
version is v0.0.45 (Slurm 26.05).

v0.0.39 has other bodies and is not supported. Each slurmrestd that serves v0.0.39 also serves a supported version.
"""


@dataclass(frozen=True)
class RestVersions:
    codec: Codec
    accounting: str | None
    """Version in the path of queries to slurmdbd; None if slurmrestd does not serve them."""


def negotiate(openapi: Body) -> RestVersions:
    """Choose the versions. Raises SlurmUnreachable if slurmrestd serves no supported version, and one of
    `queue_reader.FAULTS` for a malformed description."""
    paths = list(openapi["paths"])
    served = _served(paths, r"/slurm/v0\.0\.(\d+)/jobs/?")
    version = _best(served)
    if version is None:
        there = ", ".join(f"v0.0.{v}" for v in sorted(served)) or "no version of slurmctld's API"
        raise SlurmUnreachable(
            f"slurmrestd serves {there}; Rollyard supports v0.0.{OLDEST} and v0.0.{FIRST_OF_NOW} or later; use --cluster cli"
        )
    name = f"v0.0.{version}"
    accounted = version in _served(paths, r"/slurmdb/v0\.0\.(\d+)/job/\{job_id\}/?")
    if version == OLDEST:
        return RestVersions(OldCodec(name), name if accounted else None)
    schema = openapi.get("components", {}).get("schemas", {}).get(f"{name}_job_desc_msg", {})
    return RestVersions(
        NewCodec(name, frozenset(schema["properties"]) if "properties" in schema else None), name if accounted else None
    )


def _served(paths: Iterable[str], pattern: str) -> set[int]:
    return {int(found[1]) for path in paths if (found := re.fullmatch(pattern, path))}


def _best(served: Iterable[int]) -> int | None:
    """Return the newest served version up to LAST_TRIED. If there is none, return the oldest later version.

    Return None if no supported version is served.
    """
    spoken = {v for v in served if v == OLDEST or v >= FIRST_OF_NOW}
    tried = {v for v in spoken if v <= LAST_TRIED}
    return max(tried) if tried else min(spoken, default=None)

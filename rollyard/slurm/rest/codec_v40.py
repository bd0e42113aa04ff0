"""Codec for v0.0.40 and later versions, which Slurm 23.11 to 26.05 have. Pure.

A number is an object `{set, infinite, number}`. States and flags are lists of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

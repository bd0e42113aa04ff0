"""Codec for v0.0.38, which Slurm 22.05 to 23.11 has. Pure.

Values are plain numbers or words. A missing value is null, and a missing number may be negative. Only an exit code from
accounting is an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Partition
from rollyard.slurm.rest.codec import Body, Codec, names


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

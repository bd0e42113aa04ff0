"""Logs as JSON lines on stderr, and the metrics registry. Metric labels come from fixed sets: no uid, no job id."""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import lru_cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

M = TypeVar("M", Counter, Gauge, Histogram)
REGISTRY = CollectorRegistry()

ROLLOUTS_FINISHED = Counter("rollyard_rollouts_finished", "Rollouts by terminal status.", ["status"], registry=REGISTRY)
REWARDS = Counter(
    "rollyard_rewards",
    "Rewards above 0 by pool, without those of checks. marks: `suspicious` if the rollout has this metric, else `none`.",
    ["namespace", "pool", "marks"],
    registry=REGISTRY,
)
REWARD = Histogram(
    "rollyard_reward", "Rewards by pool and task kind, without those of checks.", ["namespace", "pool", "kind"],
    registry=REGISTRY, buckets=(0, 0.1, 0.25, 0.5, 0.75, 0.9, 1),
)  # fmt: skip
ROLLOUTS_UNSCORED = Counter(
    "rollyard_rollouts_unscored",
    "Rollouts that ended without a reward, by the reason of the failure table.",
    ["namespace", "pool", "reason"],
    registry=REGISTRY,
)
ROLLOUT_STAGE_SECONDS = Histogram(
    "rollyard_rollout_stage_seconds", "Seconds that attempts spent in each stage.", ["stage"], registry=REGISTRY,
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 1800, 3600),
)  # fmt: skip
STAGE_WORKERS = Gauge("rollyard_stage_workers", "Stage workers of connected node agents.", ["stage"], registry=REGISTRY)
SANDBOXES = Gauge(
    "rollyard_sandboxes",
    "Sandboxes of connected node agents: ready now; claimed warm or cold, and ended unused, since their start.",
    ["what"],
    registry=REGISTRY,
)
IMAGE_CACHE_BYTES = Gauge(
    "rollyard_image_cache_bytes",
    "Bytes of the images in the caches of connected nodes: stored (each layer once), unshared (each image whole), and evicted "
    "since the node agents' start.",
    ["what"],
    registry=REGISTRY,
)
IMAGE_CACHE_LAYERS = Gauge(
    "rollyard_image_cache_layers",
    "Unpacked layers of these images: stored, and evicted since the node agents' start.",
    ["what"],
    registry=REGISTRY,
)
ATTEMPTS_FAULTED = Counter(
    "rollyard_attempts_faulted",
    "Attempts that ended without a reward because of a fault that is not the agent's, by its reason.",
    ["reason"],
    registry=REGISTRY,
)
LEASES_LOST = Counter("rollyard_leases_lost", "Leases that ended without a result.", ["why"], registry=REGISTRY)
ROLLOUTS_RESUMED = Counter(
    "rollyard_rollouts_resumed",
    "Leases of rollouts that followed a lost one in RUN: after a saved turn, or from the beginning.",
    ["where"],
    registry=REGISTRY,
)
RESUMED_TURNS = Counter(
    "rollyard_resumed_turns",
    "Saved turns of resumed rollouts: kept, replayed (kept, and their tool calls run again), dropped and sampled again.",
    ["what"],
    registry=REGISTRY,
)
TURNS_SAVED = Counter("rollyard_turns_saved", "Turns that node agents have saved during RUN.", registry=REGISTRY)
RESUME_SNAPSHOT_BYTES = Counter(
    "rollyard_resume_snapshot_bytes", "Bytes of stored snapshots from which rollouts can go on.", registry=REGISTRY
)
RESUME_SNAPSHOT_SECONDS = Counter(
    "rollyard_resume_snapshot_seconds", "Seconds that rollouts waited for these snapshots.", registry=REGISTRY
)
ROLLOUTS_OUTDATED = Counter(
    "rollyard_rollouts_outdated",
    "Rollouts whose weights became older than they allow.",
    ["what"],
    registry=REGISTRY,
)
BATCH_GROUPS = Counter(
    "rollyard_batch_groups", "Groups of batches: drawn, and by their verdict.", ["outcome"], registry=REGISTRY
)
BATCHES_ENDED = Counter("rollyard_batches_ended", "Batches by terminal status.", ["status"], registry=REGISTRY)
TASKS_PASSED_OVER = Counter(
    "rollyard_tasks_passed_over", "Tasks that were not drawn because of their own history.", registry=REGISTRY
)
BATCH_TOKENS = Counter(
    "rollyard_batch_tokens", "Sampled tokens of groups that were delivered, and of others.", ["use"], registry=REGISTRY
)
BATCH_STALENESS = Histogram(
    "rollyard_batch_staleness_steps", "Training steps between the draw of a delivered group and its use.",
    registry=REGISTRY, buckets=(0, 1, 2, 4, 8, 16, 32),
)  # fmt: skip
BATCH_SECONDS_TO_TARGET = Histogram(
    "rollyard_batch_seconds_to_target", "Seconds from the submit of a batch until its target was delivered.",
    registry=REGISTRY, buckets=(1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400),
)  # fmt: skip
RECONCILES = Counter("rollyard_reconciles", "Reconciles by kind and outcome.", ["kind", "outcome"], registry=REGISTRY)
SLURM_CALLS = Counter("rollyard_slurm_calls", "Calls to Slurm.", ["call", "outcome"], registry=REGISTRY)
SLURM_SECONDS = Histogram("rollyard_slurm_seconds", "Seconds that calls to Slurm took.", ["call"], registry=REGISTRY)
ENDPOINTS_READY = Gauge("rollyard_endpoints_ready", "Model servers that accept work.", registry=REGISTRY)
ENDPOINTS_EJECTED = Counter("rollyard_endpoints_ejected", "Model servers that were ejected.", registry=REGISTRY)
REPINS = Counter("rollyard_repins", "Live sessions that were told to move to another model server.", registry=REGISTRY)


@lru_cache(maxsize=1024)
def child(metric: M, *labels: str) -> M:
    """Return `metric.labels(*labels)`, for metrics of each rollout: that function takes a lock, and looks at each label."""
    return metric.labels(*labels)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging() -> None:
    """Send log records of level INFO and above to stderr, one JSON object a line. A process calls this at its start."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)

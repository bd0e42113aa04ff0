"""`rollyard describe`: the details of an object, for people."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import yaml

from rollyard.cli.options import kind_and_names, with_client
from rollyard.cli.output import align, table
from rollyard.cli.printable import printable
from rollyard.cli.snapshot_lines import size
from rollyard.cli.weights import weights_lines
from rollyard.client.async_client import AsyncClient
from rollyard.core.clock import as_text
from rollyard.kinds.allocation import Allocation, AllocationStatus
from rollyard.kinds.base import Condition, KindObject
from rollyard.kinds.event import Event
from rollyard.kinds.inference_pool import EndpointStatus, InferencePool
from rollyard.kinds.planned_successor import PlannedSuccessor
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.schema.columns import age
from rollyard.kinds.top import ImageStorageTop
from rollyard.kinds.values.job_state import JobState

WAITING_READ = 1000
"""Greatest number of queued rollouts whose reasons are read."""


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME")
@with_client
async def describe(client: AsyncClient, namespace: str, words: tuple[str, ...]) -> None:
    """Show an object, its conditions, allocations and events."""
    _, keys = kind_and_names(words, namespace)
    if not keys:
        raise click.UsageError("write describe KIND NAME")
    for key in keys:
        obj = await client.get(key)
        allocations, _ = await client.list_objects("Allocation", namespace)
        owned = [a for a in allocations if isinstance(a, Allocation) and a.spec.pool.uid == obj.metadata.uid]
        events, _ = await client.list_objects("Event", namespace)
        uids = {
            obj.metadata.uid,
            *(a.metadata.uid for a in owned),
        }  # not by name: a deleted object may have had the same name
        happened = [e for e in events if isinstance(e, Event) and e.involved_object.uid in uids]
        extra = [*await _pool_work(client, obj), *await _waiting(client, obj), *await _missing_images(client, obj)]
        found = [a for a in allocations if isinstance(a, Allocation)]
        lines = _lines(obj, owned, sorted(happened, key=lambda e: e.last_timestamp), extra)
        if isinstance(obj, Allocation):
            lines[5:5] = await _succession(client, obj, found)
        click.echo(printable("\n".join(lines)))


async def _pool_work(client: AsyncClient, obj: KindObject) -> list[str]:
    """Return lines with the numbers of a RolloutPool's sandboxes, and with what is saved of its rollouts."""
    lines: list[str] = []
    for pool in (await client.top(obj.metadata.namespace)).rollout_pools if isinstance(obj, RolloutPool) else []:
        if pool.name == obj.metadata.name:
            s, stored, saved = pool.sandboxes, pool.images, pool.saved
            kept = f"; {s.kept} of failed attempts kept" if s.kept else ""
            words = f"{s.ready} warm now; rollouts got {s.warm} warm and {s.cold} cold; {s.unused} warm ended unused"
            lines.append(f"Sandboxes:  {words}{kept}")
            if stored.images:
                lines.append(f"Images:     {stored_images(stored)}")
            lines.append(
                f"Saved work: turns {size(saved.turns)}, snapshots {size(saved.snapshots)}, of rollouts in RUN"
            )
    return lines


def stored_images(stored: ImageStorageTop) -> str:
    """Describe what the images in the caches of a pool's nodes take."""
    words = f"{stored.images} of {stored.layers} layers in the caches of its nodes: {size(stored.bytes)}"
    evicted = (
        f"; evicted: {stored.evicted_layers} layers, {size(stored.evicted_bytes)}" if stored.evicted_layers else ""
    )
    return f"{words}, and {size(stored.unshared_bytes)} if none shared a layer{evicted}"


async def _waiting(client: AsyncClient, obj: KindObject) -> list[str]:
    """Return lines with the reasons for which a RolloutPool's queued rollouts wait, the most frequent first."""
    if not isinstance(obj, RolloutPool):
        return []
    found: dict[str, list[str]] = {}
    read = 0
    queued = client.rollouts(obj.metadata.namespace, pool=obj.metadata.name, status=["Queued"], limit=WAITING_READ)
    async for view in queued:
        read += 1
        if view.waiting is not None:
            found.setdefault(view.waiting.word, []).append(f"{view.id}: {' '.join(view.waiting.message.split())}")
    if not found:
        return []
    rows = [["REASON", "ROLLOUTS", "THE FIRST OF THEM"]]
    rows += [[word, str(len(some)), some[0]] for word, some in sorted(found.items(), key=lambda one: -len(one[1]))]
    more = f" (the first {WAITING_READ} alone)" if read == WAITING_READ else ""
    return [f"Queued rollouts wait for{more}:", *_indented(align(rows))]


async def _missing_images(client: AsyncClient, obj: KindObject) -> list[str]:
    """Return lines with all images that a RolloutPool's nodes cannot have now."""
    if not isinstance(obj, RolloutPool):
        return []
    rows = [["IMAGE", "FAILURES", "SINCE", "ROLLOUTS", "NEXT TRY", "WHY"]]
    for one in await client.missing_images():
        if (one.namespace, one.pool) == tuple(obj.pool_key):
            facts = [str(one.failures), as_text(one.since), str(one.waiting), one.next_try]
            rows.append([one.image, *facts, " ".join(one.message.split())])
    return ["Images missing on this pool's nodes:", *_indented(align(rows))] if len(rows) > 1 else []


async def _succession(client: AsyncClient, allocation: Allocation, others: Sequence[Allocation]) -> list[str]:
    """Return lines about the allocation's predecessor and successor, or about the time at which the successor is submitted."""
    name, lines = allocation.metadata.name, list[str]()
    if allocation.spec.successor_of:
        lines.append(f"Replaces:   {allocation.spec.successor_of}")
    for other in others:
        if other.spec.successor_of == name and (allocation.status.is_ended or not other.status.is_ended):
            lines.append(f"Successor:  {other.metadata.name} ({other.status.job_state or 'not submitted yet'})")
            return lines
    planned = {one.allocation: one for one in await client.planned_successors(allocation.metadata.namespace)}
    if name in planned:
        lines.append(f"Successor:  planned; {_when_submitted(planned[name])}")
    return lines


def _when_submitted(planned: PlannedSuccessor) -> str:
    if planned.waits_for is not None:
        at = "no time yet" if planned.submit_at is None else as_text(planned.submit_at)
        place = "which takes the place of spec.renewal.maxSurge"
        return f"submitted after {planned.waits_for} has started, {place}; Slurm expects that at {at}"
    times = [as_text(at) for at in (planned.submit_at, planned.take_over_at) if at is not None]
    return f"submitted about {times[0]}, takes over about {times[-1]}"


def _lines(obj: KindObject, owned: list[Allocation], events: list[Event], sandboxes: list[str]) -> list[str]:
    meta = obj.metadata
    lines = [f"Name:       {meta.name}", f"Namespace:  {meta.namespace}", f"Kind:       {obj.key.kind}"]
    lines += [f"Created:    {meta.creation_timestamp}", f"Generation: {meta.generation}"]
    if meta.deletion_timestamp:
        lines.append(f"Deleting:   since {meta.deletion_timestamp}")
    dumped: dict[str, Any] = obj.dump()
    lines += ["Spec:", *_indented(yaml.safe_dump(dumped["spec"], sort_keys=False).rstrip().splitlines())]
    if isinstance(obj, Pool):
        lines += [*_pool(obj), *sandboxes]
    if isinstance(obj, Allocation):
        lines += ["Job:", *_indented(_job(obj.status))]
    lines += ["Conditions:", *_indented(_conditions(getattr(getattr(obj, "status", None), "conditions", [])))]
    if owned:
        shown = sorted(owned, key=lambda a: a.spec.index)
        lines += ["Allocations:", *_indented(table(Allocation, shown, wide=True, namespaces=False))]
    rows = table(Event, events, wide=True, namespaces=False) if events else ["<none>"]
    return [*lines, "Events:", *_indented(rows)]


def _pool(pool: Pool) -> list[str]:
    replicas = pool.status.replicas
    words = f"{replicas.desired} desired, {replicas.requested} requested, {replicas.observed} observed, {replicas.ready} ready"
    words += f", {replicas.updated} up to date"
    lines = [f"Replicas:   {words}", *_gpu_hours(pool)]
    if isinstance(pool, InferencePool):
        shown = endpoint_lines(pool.status.endpoints)
        lines += ["Endpoints:", *_indented(shown), *weights_lines(pool.status.weights)]
    if isinstance(pool, RolloutPool):
        rows = [["STAGE", "QUEUED", "IN LINE", "AT WORK", "WIDTH"]]
        rows += [[n, str(s.queued), str(s.waiting), str(s.busy), str(s.width)] for n, s in pool.status.stages.items()]
        lines += ["Stages:", *_indented(align(rows))]
    now = datetime.now(UTC)
    rows = [[f"{age(d.time, now)} ago", str(d.desired), d.message] for d in pool.status.decisions]
    return lines + (["Scaling:", *_indented(align(rows))] if rows else [])


def endpoint_lines(endpoints: Sequence[EndpointStatus]) -> list[str]:
    """Return a table with a header and one line for each endpoint."""
    rows = [["ENDPOINT", "READY", "SESSIONS", "CAPACITY", "WEIGHTS", "URL", "REASON"]]
    for e in endpoints:
        sessions = str(e.sessions) if e.max_sessions is None else f"{e.sessions} of {e.max_sessions}"
        words = [e.reason, "draining" if e.draining else "", e.full if e.max_sessions is not None else ""]
        reason = "; ".join(word for word in words if word)
        row = [
            e.id,
            str(e.ready),
            sessions,
            f"{e.capacity:g}",
            e.weights_version or "<none>",
            e.url,
            reason or "<none>",
        ]
        rows.append(row)
    return align(rows)


def _job(status: AllocationStatus) -> list[str]:
    now, pending = datetime.now(UTC), status.job_state == JobState.PENDING
    rows = [
        ["Id:", status.job_id or "<none>"],
        ["State:", status.job_state or "not in Slurm's queue yet"],
        ["Reason:", status.waiting_reason or "<none>"],
        ["Node:", status.node or "<none>"],
        ["Exit code:", _exit_code(status.exit_code)],
        ["Submitted:", f"{_when(status.intended_at, now)}, {status.intents} time{'' if status.intents == 1 else 's'}"],
        ["Expected start:" if pending else "Started:", _when(status.start_time, now)],
        ["Ended:" if status.is_ended else "Walltime ends:", "<unknown>" if pending else _when(status.end_time, now)],
        ["First ready:", _when(status.ready_at, now)],
    ]
    if status.binding is not None:
        rows.append(["Registered:", f"{_when(status.binding.registered_at, now)}, from {status.binding.node}"])
    return align(rows)


def _exit_code(code: int | None) -> str:
    """Format an exit code. A shell's code after a signal, 128 plus the signal's number, gets the signal's name."""
    if code is None:
        return "<none>"
    try:
        return f"{code} ({signal.Signals(code - 128).name})"
    except ValueError:
        return str(code)


def _when(time: datetime | None, now: datetime) -> str:
    if time is None:
        return "<unknown>"
    distance = f"in {age(now, time)}" if time > now else f"{age(time, now)} ago"
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({distance})"


def _gpu_hours(pool: Pool) -> list[str]:
    ledger, cap = pool.status.gpu_ledger, pool.spec.max_gpu_hours
    if not (ledger.past or ledger.spells or cap):
        return []
    limit = f", at most {cap:g} (spec.maxGpuHours)" if cap is not None else ""
    return [f"GPU-hours:  {ledger.hours(datetime.now(UTC).timestamp()):.2f} spent{limit}"]


def _conditions(conditions: list[Condition]) -> list[str]:
    now = datetime.now(UTC)
    rows = [["TYPE", "STATUS", "REASON", "AGE", "GENERATION", "MESSAGE"]]
    rows += [
        [c.type, c.status, c.reason, age(c.last_transition_time, now), str(c.observed_generation), c.message]
        for c in conditions
    ]
    return align(rows)


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]

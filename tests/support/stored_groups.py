"""Groups of a series as a data folder holds them, also after its server was killed."""

from __future__ import annotations

from pathlib import Path

from rollyard.store.batch_records import GroupRecord
from rollyard.store.store import Store


async def stored_groups(data: Path, series: str, namespace: str = "default") -> list[GroupRecord]:
    """Return the drawn groups in order of their numbers, up to the first number that is missing."""
    store = await Store.open(data)
    found: list[GroupRecord] = []
    number = 0
    while (
        group := await store.rollouts.transact(lambda tx, n=number: tx.batches.group(namespace, f"{series}-g{n}"))  # type: ignore[misc]
    ) is not None:
        found.append(group)
        number += 1
    await store.close()
    return found

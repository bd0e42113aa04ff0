"""Slots for keys and values. Each running sequence has a slot. Later prompts can reuse a slot's content, also after the
sequence's end.

Keys are stored transposed, as [slot, kv head, head_dim, position]. In this layout, BLAS is fast for the few rows of a
decoding step: one row for each query head that shares the kv head.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from rollyard.core.errors import Invalid
from rollyard.engine.embedded.safetensors_files import Array
from rollyard.model_folder.model_config import Config


@dataclass
class _Slot:
    busy: bool = False
    last_use: int = 0
    stale: bool = False
    """True if a part of the content was computed with earlier weights. Only the sequence that runs in the slot can use
    such content."""


class KVCache:
    """Slots with `capacity` positions each. Not thread-safe: only the engine's thread may use a cache."""

    def __init__(self, config: Config, slots: int, capacity: int) -> None:
        """Raises Invalid if full slots need more than this machine's memory."""
        cells = slots * config.kv_heads * config.head_dim * capacity
        _check_memory(2 * 4 * cells * config.layers, slots, capacity)
        # np.empty, because the kernel allocates pages only when positions are written
        self.keys: list[Array] = [
            np.empty((slots, config.kv_heads, config.head_dim, capacity), np.float32) for _ in range(config.layers)
        ]
        self.values: list[Array] = [
            np.empty((slots, config.kv_heads, capacity, config.head_dim), np.float32) for _ in range(config.layers)
        ]
        self._tokens = np.full((slots, capacity), -1, np.int32)
        self._lengths = np.zeros(slots, np.int64)
        self._slots = [_Slot() for _ in range(slots)]
        self._uses = 0

    def acquire(self, prompt: list[int]) -> tuple[int, int]:
        """Acquire a slot for this prompt. Return the slot and the number of leading positions that are filled already.

        The prompt's last position is never among these, because sampling needs the model's output there.
        """
        best, common = self._longest_prefix(prompt)
        free = [i for i, slot in enumerate(self._slots) if not slot.busy]
        continues = best in free and common == self._lengths[best]
        slot = best if continues else min(free, key=lambda i: self._slots[i].last_use)
        if slot != best and common:
            self._copy(best, slot, common)
        self._lengths[slot] = common
        self._slots[slot].busy = True
        return slot, common

    def forget(self) -> None:
        """Exclude the present content from reuse, after a change of weights. Running sequences keep their content."""
        for i, slot in enumerate(self._slots):
            slot.stale = slot.busy
            if not slot.busy:
                self._lengths[i] = 0

    def empty(self, slot: int) -> None:
        """Drop the content of a running sequence's slot."""
        self._lengths[slot] = 0
        self._slots[slot].stale = False

    def extend(self, slot: int, tokens: list[int]) -> None:
        """Record that the slot's next positions have the keys and values of `tokens`."""
        start = int(self._lengths[slot])
        self._tokens[slot, start : start + len(tokens)] = tokens
        self._lengths[slot] = start + len(tokens)

    def release(self, slot: int) -> None:
        """Release the slot of an ended sequence. Later prompts can reuse the content unless it is stale."""
        self._uses += 1
        self._slots[slot].busy = False
        self._slots[slot].last_use = self._uses
        if self._slots[slot].stale:
            self._slots[slot].stale = False
            self._lengths[slot] = 0

    def _longest_prefix(self, prompt: list[int]) -> tuple[int, int]:
        wanted = np.asarray(prompt[:-1], np.int32)
        differs = self._tokens[:, : len(wanted)] != wanted
        common = np.where(differs.any(axis=1), differs.argmax(axis=1) if len(wanted) else 0, len(wanted))
        common = np.minimum(common, self._lengths)
        common[[slot.stale for slot in self._slots]] = 0
        best = int(common.argmax())
        return best, int(common[best])

    def _copy(self, source: int, target: int, count: int) -> None:
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[target, :, :, :count] = keys[source, :, :, :count]
            values[target, :, :count] = values[source, :, :count]
        self._tokens[target, :count] = self._tokens[source, :count]


def _check_memory(wanted: int, slots: int, capacity: int) -> None:
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > installed:
        gib = 2**30
        raise Invalid(
            f"{slots} slots of {capacity} tokens need up to {wanted / gib:.1f} GiB of keys and values, but this machine "
            f"has {installed / gib:.1f} GiB; lower --max-model-len or --max-sequences"
        )

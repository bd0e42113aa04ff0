"""Saved turns of a task kind's own agent loop, which runs again from its start in a new sandbox.

A conversation gets its saved turn if it asks with the same prompt, and the turn's calls are run again (`replay.py`). The first
difference drops all turns that are left. To ask for more turns than the conversation has is no difference: they are sampled,
and other conversations that go on at the same time still get theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rollyard.node.agent_loop import AgentProgress
from rollyard.node.replay import Replay, fits
from rollyard.node.snapshot_cost import not_repeatable
from rollyard.trajectory import SavedTurn

Queue = deque[tuple[int, SavedTurn]]
"""Turns of one conversation that are left, each with its number among all saved turns."""


class LoopReplay:
    """The saved turns of one run. Pure: the caller runs the calls."""

    def __init__(self, saved: Sequence[SavedTurn], has_network: bool) -> None:
        """`has_network`: whether calls of the sandbox may reach a network, so that they are not run again."""
        self._has_network = has_network
        self._unclaimed: dict[int, Queue] = {}
        for number, one in enumerate(saved, start=1):
            self._unclaimed.setdefault(one.conversation, deque()).append((number, one))
        self._claimed: dict[int, Queue] = {}
        """Number of a conversation of this run -> what it gets."""
        self._open: dict[int, tuple[int, SavedTurn]] = {}
        """Number of a conversation -> its last turn, which is a saved one, until the conversation goes on."""
        self._settled: list[int | None] = []
        """Saved turns, in the order in which their conversations went on; None in place of another turn."""
        self._kept = 0
        self._why: str | None = None
        self.over = not saved
        """Whether all saved turns are given or dropped."""
        self.seconds = 0.0
        """Seconds of RUN's budget that the given turns took."""

    def take(self, chat: AgentProgress, prompt: Sequence[int], *, alone: bool, others_ask: bool) -> SavedTurn | None:
        """Return the turn for this prompt, or None: it must be sampled. `alone`: no other conversation does something.
        `others_ask`: others are about to take a turn, perhaps their first one."""
        queue = self._claimed.get(chat.number)
        if queue is None:
            queue = self._claimed[chat.number] = self._claim(chat, prompt)
        if not queue:
            self.over |= alone or not (others_ask or any(self._claimed.values()))
            if self.over:
                self.end("the loop asks for another turn")
            return None
        number, saved = queue[0]
        if not self._asks_for(chat, saved, prompt):
            self._drop(f"turn {number}: the loop asks with another prompt")
        elif why := not_repeatable(saved.turn, self._has_network):
            self._drop(f"turn {number}: {why}")
        else:
            self._open[chat.number] = queue.popleft()
            self._kept, self.seconds = self._kept + 1, max(self.seconds, saved.run_seconds)
            self.over = not any(self._queues())
            return saved
        return None

    def taken(self, chat: AgentProgress) -> SavedTurn | None:
        """Return the conversation's last turn as it was saved; None if it was sampled now."""
        return self._open[chat.number][1] if chat.number in self._open else None

    @property
    def is_open(self) -> bool:
        """Whether calls of a given turn may still have another result."""
        return bool(self._open)

    def differs(self, chat: AgentProgress, why: str) -> None:
        """Drop what is left: a call of the conversation's last turn had another result."""
        self._drop(f"turn {self._open[chat.number][0]}: {why}")

    def settle(self, chat: AgentProgress) -> None:
        """Note that the conversation goes on behind its last turn."""
        number, saved = self._open.pop(chat.number, (None, None))
        self._settled.append(number if saved is not None and saved.turn == chat.turns[-1] else None)

    def end(self, why: str) -> None:
        """Drop what is left, if anything is."""
        if left := [number for queue in self._queues() for number, _ in queue]:
            self._drop(f"turn {min(left)}: {why}")
        self.over = True

    @property
    def replay(self) -> Replay:
        return Replay(self._kept, self._kept, self._why)

    @property
    def stored(self) -> int:
        """Number of saved turns that went on first, in their order. The server keeps these as they are."""
        pairs = enumerate(self._settled, start=1)
        return next((place - 1 for place, number in pairs if number != place), len(self._settled))

    def _claim(self, chat: AgentProgress, prompt: Sequence[int]) -> Queue:
        """Return the turns of the first conversation that began with this prompt."""
        for number, queue in self._unclaimed.items():
            if self._asks_for(chat, queue[0][1], prompt):
                return self._unclaimed.pop(number)
        return deque()

    def _asks_for(self, chat: AgentProgress, saved: SavedTurn, prompt: Sequence[int]) -> bool:
        return chat.max_tokens == saved.max_tokens and fits(chat, saved, prompt)

    def _drop(self, why: str) -> None:
        self._why, self.over = self._why or why, True
        for queue in self._claimed.values():
            queue.clear()
        self._unclaimed.clear()

    def _queues(self) -> list[Queue]:
        return [*self._claimed.values(), *self._unclaimed.values()]

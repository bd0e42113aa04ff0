"""Answer to the question whether a pool's tool calls are read."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import evolve
from rollyard.wire.base import WireMessage

CALLS_UNREADABLE = "ToolCallsUnreadable"
"""Reason of a rollout that ends because its tool calls would not be read."""

MAX_REASON_CHARS, MAX_MESSAGE_CHARS = 100, 2000


class ToolProof(WireMessage):
    """Result of a proof: the model's chat template wrote calls and results, and the parser read the calls back."""

    status: Literal["True", "False", "Unknown"]
    """False: calls would be lost or read wrong. Unknown: the template does not show enough for a proof."""
    reason: str
    """CamelCase word for programs."""
    message: str = ""
    parser: str | None = None
    """Parser that was named for the proof; null: the one that fits the template."""

    @property
    def shortened(self) -> ToolProof:
        """The proof as it may be stored: another process may have sent anything."""
        return evolve(self, reason=self.reason[:MAX_REASON_CHARS], message=self.message[:MAX_MESSAGE_CHARS])

    @property
    def refuses(self) -> bool:
        return self.status == "False"


class TemplateProof(WireMessage):
    """Proof of the template in one folder."""

    tokenizer: str
    """Folder of the tokenizer and chat template."""
    proof: ToolProof

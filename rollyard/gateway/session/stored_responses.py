"""Responses of one session, to which later calls refer by id. Only calls of the same session find them.

A response is a link to the branch that has its turn, so it needs no copy of the conversation. The branch's messages up to
the turn never change. The bodies are copies for callers that read a response again, and their size is limited.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from rollyard.gateway.requests.call_errors import no_previous_response, no_response
from rollyard.gateway.session.chat_branch import ChatBranch
from rollyard.tokens.chat_template import Message

MAX_BODIES = 4 << 20
"""Greatest number of bytes of all kept bodies, compressed. The oldest bodies are dropped first."""


@dataclass(frozen=True)
class ResponseLink:
    branch: ChatBranch
    start: int
    """Index of the first message that a later call continues."""
    end: int
    """Number of the branch's messages up to the response's turn."""


class StoredResponses:
    def __init__(self) -> None:
        self._links: dict[str, ResponseLink] = {}
        self._bodies: dict[str, bytes] = {}
        self._size = 0

    def add(self, id: str, branch: ChatBranch, start: int) -> None:
        """Link an id to the last turn of a branch. `start`: number of the call's own messages before the conversation."""
        self._links[id] = ResponseLink(branch, start, branch.length)

    def keep_body(self, id: str, data: bytes) -> None:
        """Keep a body that `pack` has packed."""
        self._bodies[id] = data
        self._size += len(data)
        while self._size > MAX_BODIES:
            self._drop_body(next(iter(self._bodies)))

    def messages(self, id: str) -> list[Message]:
        """Return the messages up to the response's turn. Raises GatewayError."""
        link = self._links.get(id)
        if link is None:
            raise no_previous_response(id)
        return link.branch.messages[link.start : link.end]

    def body(self, id: str) -> dict[str, Any]:
        """Return a response as it was sent. Raises GatewayError."""
        if id not in self._bodies:
            raise no_response(id)
        body: dict[str, Any] = json.loads(zlib.decompress(self._bodies[id]))
        return body

    def delete(self, id: str) -> None:
        """Remove a response; its turn stays in the trajectory. Raises GatewayError."""
        if self._links.pop(id, None) is None:
            raise no_response(id)
        self._drop_body(id)

    def _drop_body(self, id: str) -> None:
        self._size -= len(self._bodies.pop(id, b""))


def pack(body: bytes) -> bytes:
    return zlib.compress(body)

"""Calls of gpt-oss, in the form Harmony. A turn is a series of messages in channels.

A call is a message to `functions.NAME`, usually in the commentary channel. The text of the answer is in the final channel,
thoughts are in the analysis channel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.sampled_turn import MESSAGE
from rollyard.tokens.tool_calls.argument_types import ArgumentTypes
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import arguments_of, load_at
from rollyard.tokens.tool_calls.lost_calls import FOREIGN, lost_call

ENDS = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z")
BODY_ENDS = re.compile(rf"{ENDS.pattern}|(?=<\|channel\|>)")
"""End of a text. A model may begin the next message without ending this one."""
RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|$)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
ROLE = re.compile(r"<\|start\|>\s*assistant|\bto=\S+")
PREFIX = "functions."
LOST_RECIPIENT = re.compile(r"<\|channel\|>(?!\s*final\b).*(?:<\|constrain\|>|\bfunctions\.)", re.DOTALL)
"""Header of a call without a recipient, or with one that is spelled wrong."""


class Harmony:
    form = (
        "Write <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> with one JSON object."
    )
    error_role = "user"
    marks = ("<|channel|>", "<|start|>", MESSAGE, "to=functions.")

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._tools = ArgumentTypes(tools).tools

    def parse(self, text: str) -> ParsedTurn:
        content: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        at, error = 0, None
        while at < len(text):
            begin = at
            header, body, at = _message(text, at)
            recipient = RECIPIENT.search(header)
            if body is not None:
                content.append(ROLE.sub("", header.partition("<|channel|>")[0]))  # text in front of a header
            said = BODY_ENDS.split(text[body:at], maxsplit=1)[0] if body is not None else header
            try:
                if recipient is not None:
                    call, at = _read(recipient[1], text, body)
                    calls.append(call)
                    continue
                if body is not None:
                    _check(header, said)
            except MalformedCall as mistake:
                error = str(mistake)
                content.append(text[begin:])
                break
            channel = CHANNEL.search(header)
            (thoughts if channel is not None and channel[1] == "analysis" and body is not None else content).append(
                said
            )
        answer = "".join(content).strip()
        turn = ParsedTurn(answer, tuple(calls), error, "\n".join(thoughts).strip() if thoughts else None)
        lost = lost_call(answer, self._tools) if not calls and error is None else None
        return turn if lost is None else replace(turn, error=FOREIGN.format(lost), foreign=True)

    def plain(self, text: str) -> ParsedTurn:
        """Read a turn in which nothing counts as a call."""
        turn = self.parse(text)
        return turn if not turn.calls and turn.error is None else ParsedTurn(text.strip())

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f"<|channel|>commentary to={PREFIX}{name} <|constrain|>json{MESSAGE}"

        return tagged_calls(tools, begin, "", single=True)  # the token that ends a call ends the turn


def _message(text: str, at: int) -> tuple[str, int | None, int]:
    """Return the header of the message at a position, the position of its body, and the position behind its end. A text
    without a header has no body."""
    mark, end = text.find(MESSAGE, at), ENDS.search(text, at + 1)
    assert end is not None
    if mark < 0 or mark > end.start():
        return text[at : end.start()], None, end.end()
    body = mark + len(MESSAGE)
    end = BODY_ENDS.search(text, body)
    assert end is not None
    return text[at:mark], body, end.end()


def _check(header: str, body: str) -> None:
    """Raise MalformedCall if a message that is no call has remains of a call."""
    if LOST_RECIPIENT.search(header) is not None:
        raise MalformedCall(f"the recipient to={PREFIX}NAME is missing")
    if MESSAGE in body:
        raise MalformedCall(f"{MESSAGE} stands inside a message, which ends with <|end|>")


def _read(recipient: str, text: str, body: int | None) -> tuple[ToolCall, int]:
    """Read the call whose arguments begin at `body`. Return the call and the position behind it."""
    if body is None:
        raise MalformedCall(f"{MESSAGE} is missing")
    name = recipient.removeprefix(PREFIX)
    if not name or name == recipient:
        raise MalformedCall(f"the recipient must be {PREFIX}NAME, not {recipient}")
    if body == len(text):
        raise MalformedCall("the arguments are missing")
    end = ENDS.match(text, body)
    if end is not None:
        return ToolCall(name, {}), end.end()
    value, at = load_at(text, body)
    end = ENDS.search(text, at)
    assert end is not None
    if rest := text[at : end.start()].strip():
        raise MalformedCall(f"something else stands behind the JSON object: {rest[:40]!r}")
    return ToolCall(name, arguments_of(value)), end.end()

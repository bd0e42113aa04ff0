"""Calls of gpt-oss, in the form Harmony. A turn is a series of messages in channels.

A call is a message to `functions.NAME`, in the commentary channel. The text of the answer is in the final channel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.sampled_turn import MESSAGE
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import arguments_of, load

ENDS = re.compile(r"<\|(?:end|call|return)\|>")
RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|$)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
PREFIX = "functions."


class Harmony:
    form = (
        "Write <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> with one JSON object."
    )
    error_role = "user"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        content: list[str] = []
        calls: list[ToolCall] = []
        for piece in ENDS.split(text):
            header, marked, body = piece.partition(MESSAGE)
            recipient = RECIPIENT.search(header)
            try:
                if recipient is not None:
                    calls.append(_read(recipient[1], bool(marked), body))
                    continue
            except MalformedCall as error:
                return ParsedTurn("".join(content).strip(), tuple(calls), str(error))
            channel = CHANNEL.search(header)
            if channel is None or channel[1] != "analysis":
                content.append(body if marked else header)
        return ParsedTurn("".join(content).strip(), tuple(calls))

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f"<|channel|>commentary to={PREFIX}{name} <|constrain|>json{MESSAGE}"

        return tagged_calls(tools, begin, "", single=True)  # the token that ends a call ends the turn


def _read(recipient: str, marked: bool, body: str) -> ToolCall:
    if not marked:
        raise MalformedCall(f"{MESSAGE} is missing")
    name = recipient.removeprefix(PREFIX)
    if not name or name == recipient:
        raise MalformedCall(f"the recipient must be {PREFIX}NAME, not {recipient}")
    return ToolCall(name, arguments_of(load(body.strip() or "{}")))

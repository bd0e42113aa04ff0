"""Checks that each tool result answers a call. OpenAI's and Anthropic's servers refuse other conversations too. A chat
template renders them without a complaint, and the policy would be trained on a prompt that no correct agent makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rollyard.gateway.requests.call_errors import bad_request
from rollyard.tokens.chat_template import Message


def with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with an id in each result: a result without one is that of the next call that has no result."""
    given, waiting = list[Message](), list[str]()
    for message in messages:
        if message["role"] == "tool" and not message["tool_call_id"] and waiting:
            message = {**message, "tool_call_id": waiting[0]}
        if message["role"] != "tool":
            waiting = [call["id"] for call in message.get("tool_calls", ())]
        elif message["tool_call_id"] in waiting:
            waiting.remove(message["tool_call_id"])
        given.append(message)
    return given


def check_tool_results(messages: Sequence[Message]) -> None:
    """Raise GatewayError if a result names a call that no earlier message has, or a call that has its result already. The
    results of one turn may come in any order, and calls may stay without a result."""
    called, answered = Counter[str](), Counter[str]()
    for number, message in enumerate(messages):
        called.update(call["id"] for call in message.get("tool_calls", ()))
        id = message.get("tool_call_id")
        if message["role"] != "tool" or id is None:
            continue
        answered[id] += 1
        if answered[id] > called[id]:
            fault = "has a result already" if called[id] else "is in no earlier message of the role `assistant`"
            raise bad_request(
                f"message {number + 1} is the result of the tool call {id[:100]!r}, which {fault}; send one result for each "
                "call, after the message with the call",
                param="messages",
            )


def check_results_follow_calls(messages: Sequence[Message], begin: int) -> None:
    """Raise GatewayError if a result among `messages[begin:]` does not follow the message with its call, or other results
    of that message."""
    waiting = set[str]()
    for number, message in enumerate(messages):
        if message["role"] != "tool":
            waiting = {call["id"] for call in message.get("tool_calls", ())}
        elif number >= begin and (id := message["tool_call_id"]) not in waiting:
            raise bad_request(
                f"message {number + 1} is the result of the tool call {id[:100]!r}, which comes too late: send the results "
                "of a turn right after it, before any other message or text",
                param="messages",
            )

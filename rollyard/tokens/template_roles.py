"""Checks how a chat template treats the messages of each role. This is done once for each template, with test messages.

A template expects a message's content as text or as a list of parts, and silently drops the other form. So the test
message of each role has a word. With one of the two forms, this word must appear in the rendering, or another word must
give another rendering. A template may also refuse a role.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rollyard.core.errors import TaskError, TemplateUnusable

Render = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], bool], str]
"""Function of (messages, tools, add_generation_prompt) that returns a text. Raises TaskError and TemplateUnusable."""

WORDS = {"user": "quvo", "assistant": "zemi", "system": "wyfa", "tool": "jexo"}
"""Role -> word in its test message. The words are short, because a template may cut long texts. Upper and lower case are
the same in the search."""
SECOND_USER_WORD = "hupi"
FINAL = "<|channel|>final<|message|>"
CALL_ID = "aaaaaaaaa"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run it.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
QUESTION = [{"role": "user", "content": WORDS["user"]}]


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with its content as a list of parts."""
    if not isinstance(message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def roles_in_parts(render: Render) -> frozenset[str]:
    """Return the roles for which the template needs the content as a list of parts.

    Raises TemplateUnusable if the template drops the text of a role, with or without tools, or fails on a role. Two
    errors are allowed: the template may call `raise_exception` for a role other than user, and it may fail in any way if
    there are tools, provided that it shows the same role without tools. A template that shows no tool results can be used
    without tools.
    """
    parts: set[str] = set()
    for role in WORDS:
        errors: list[TaskError | TemplateUnusable] = []
        first = TOOLS if role == "tool" else []
        forms = [form for form in (parts, parts | {role}) if _shows(render, role, form, first, errors)]
        beside, best = max(
            ((_beside_tools(render, role, form), form) for form in forms), key=lambda it: it[0], default=(0, parts)
        )
        if beside:
            parts = best
        elif role == "tool" and (error := _error(render, [in_parts(m) if m["role"] in parts else m for m in QUESTION])):
            raise TemplateUnusable(f"fails on a conversation of one question with tools: {error}")
        elif role == "tool":
            continue
        elif forms:
            raise TemplateUnusable(
                f"loses the content of a message of role {role!r} when there are tools, as text and as a "
                "list of parts; write message.content there as without tools"
            )
        elif role == "user" and errors:
            raise TemplateUnusable(f"fails on a conversation of one question: {errors[0]}")
        elif not any(isinstance(error, TaskError) for error in errors):
            how = f"fails: {errors[0]}" if errors else "shows it neither as text nor as a list of parts"
            raise TemplateUnusable(
                f"loses the content of a message of role {role!r}: it {how}; write message.content there, or call "
                "raise_exception if the model has no such role"
            )
    return frozenset(parts)


def _error(render: Render, messages: Sequence[dict[str, Any]]) -> TemplateUnusable | None:
    """Return the error with which the template fails beside tools; None if it renders or refuses the messages."""
    try:
        render(messages, TOOLS, True)
    except TemplateUnusable as error:
        return error
    except TaskError:
        pass
    return None


def ends_turns(render: Render, parts: Collection[str], ends: Sequence[str]) -> bool:
    """Return whether the template writes one of the texts `ends` after an assistant's message."""
    for messages, tools in (
        (_conversation("assistant")[0], []),
        ([*_conversation("assistant")[0], _message("user", SECOND_USER_WORD)], []),
        (_conversation("tool")[1][:2], TOOLS),
        (_conversation("tool")[1], TOOLS),
    ):
        for prompt in (False, True):
            try:
                text = render([in_parts(m) if m["role"] in parts else m for m in messages], tools, prompt)
            except (TaskError, TemplateUnusable):
                continue
            behind = text.lower().rfind("bash" if messages[1].get("tool_calls") else WORDS["assistant"])
            if behind < 0 and tools:
                continue
            behind = max(behind, 0)  # the word was not found: the whole text is searched
            upto = text.lower().find(SECOND_USER_WORD, behind)
            if any(end in text[behind : upto if upto >= 0 else None] for end in ends):
                return True
    return False


def in_channels(render: Render, parts: Collection[str]) -> bool:
    """Return whether the template writes an answer as a message in the final channel (gpt-oss).

    A template that only mentions channels, for example in a system message, gives False.
    """
    messages = [in_parts(m) if m["role"] in parts else m for m in _conversation("assistant")[1]]
    try:
        return FINAL + WORDS["assistant"] in render(messages, [], True)
    except (TaskError, TemplateUnusable):
        return False


def _beside_tools(render: Render, role: str, parts: Collection[str]) -> int:
    """Render with tools. Return 2 if the role's text is shown, 1 if the template raises, 0 if the text is dropped."""
    errors: list[TaskError | TemplateUnusable] = []
    return 2 if _shows(render, role, parts, TOOLS, errors) else int(bool(errors))


def _shows(
    render: Render,
    role: str,
    parts: Collection[str],
    tools: Sequence[dict[str, Any]],
    errors: list[TaskError | TemplateUnusable],
) -> bool:
    prompt = role != "assistant"

    def text(messages: Sequence[dict[str, Any]], word: str) -> str:
        said = [{**m, "content": m["content"].replace(WORDS[role], word)} for m in messages]
        return render([in_parts(m) if m["role"] in parts else m for m in said], tools, prompt)

    for messages in _conversation(role):
        try:
            shown = text(messages, WORDS[role])
            # the template printed the list of parts as such: this form is wrong
            if role in parts and any(f"text{q}: {q}{WORDS[role]}" in shown for q in "'\""):
                continue
            if WORDS[role] in shown.lower():
                return True
            # A template may change the text (reverse it, for example). Then the word counts as shown if another word
            # changes the rendering. A second rendering with the same word excludes a template whose renderings differ
            # for another reason, such as the time of day.
            if text(messages, SECOND_USER_WORD) != shown == text(messages, WORDS[role]):
                return True
        except (TaskError, TemplateUnusable) as error:
            errors.append(error)
    return False


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _conversation(role: str) -> list[list[dict[str, Any]]]:
    """Return conversations with a message of the role. It is enough if the template renders one of them correctly."""
    user, said = _message("user", WORDS["user"]), _message("assistant", WORDS["assistant"])
    match role:
        case "user":
            return [[user]]
        case "assistant":
            return [[user, said], [user, said, _message("user", SECOND_USER_WORD)]]
        case "system":
            return [[_message("system", WORDS["system"]), user]]
        case _:
            function = {"name": "bash", "arguments": {"command": "ls"}}
            calls = [{"id": CALL_ID, "type": "function", "function": function}]
            result = {"role": "tool", "name": "bash", "tool_call_id": CALL_ID, "content": WORDS["tool"]}
            return [[user, said, result], [user, {**_message("assistant", ""), "tool_calls": calls}, result]]

"""Finds out which fields of a message a chat template reads, by renderings of test messages. This is done once for each
template.

Templates write thoughts, calls, the ids of calls and their results from fields, but under different names and in
different forms. `TemplateFields.shaped` gives a message the form that the template reads. The fields
and the probes that find them are in one file, because each field has one probe.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.template_roles import Render, in_parts

Message = dict[str, Any]

THOUGHTS = "reasoning_content"
"""Field of a message's thoughts outside this module. The template gets them under its own name."""
THOUGHT_FIELDS = (THOUGHTS, "reasoning", "thinking", "thoughts", "thought")
PREAMBLE = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
"""Text between thoughts and a preamble. Harmony, the format of gpt-oss, has a message for each of them."""
NINE = re.compile(r"[a-zA-Z0-9]{9}")
NAMED = re.compile(r"functions\.[^:\s]+:\d+")

WORD, ANSWER, RESULT, NAME, ID = "vylo", "zemi", "jexo", "wexi", "aaaaaaaaa"
"""Words in the test messages: a value or thoughts, an answer, a result, the name of a tool, the id of a call."""
MARKER = re.compile(r"<[|/\w][^<>]*>|\[/?[A-Z_]+\]")
LONGEST_MARKER = 64
"""Greatest number of characters of the markers before or after an answer."""
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Run it.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


class CallIds(StrEnum):
    """Form of the ids of calls."""

    ANY = "any"
    NINE = "nine"
    """Nine letters or digits; the template refuses other ids (Mistral)."""
    NAMED = "named"
    """`functions.NAME:NUMBER`; the ids carry the names of the tools, and number all calls of the conversation (Kimi)."""


@dataclass(frozen=True)
class TemplateFields:
    """Fields that a template reads, and their forms."""

    thoughts: str | None = None
    """Field of a turn's thoughts; None if the template reads none."""
    thought_parts: bool = False
    """Whether the template reads thoughts as a part of the content (`{"type": "thinking", "thinking": …}`)."""
    calls: bool = False
    """Whether the template writes the field `tool_calls`."""
    no_calls: str = ""
    """Error with which the template fails at a turn with calls; empty if it does not."""
    calls_with_content: bool = True
    """Whether the template writes a turn with thoughts, an answer and calls. gpt-oss's refuses one; its turns with calls are
    rendered without their preamble."""
    drops_calls: bool = False
    """Whether the template leaves out the calls of a message with text (Phi-4-mini). It gets such a turn as text."""
    preambles: bool = False
    """Whether the template writes a preamble, a message in the commentary channel, if it stands behind the thoughts in
    their field (gpt-oss)."""
    one_call: bool = False
    """Whether the template writes the first of several calls only. Each call gets a message of its own then."""
    arguments_as_text: bool = False
    """Whether the template needs the arguments of a call as JSON text. Else it needs an object."""
    any_arguments: bool = False
    """Whether the template writes arguments that are text as they are."""
    call_ids: CallIds = CallIds.ANY
    results: bool = False
    """Whether the template writes results of calls."""
    lone_results: bool = False
    """Whether the template writes a result that follows no call in the field `tool_calls`."""
    user_behind_results: bool = True
    """Whether the template writes a user's message directly behind results of calls (Ministral's refuses it)."""
    tools: bool = False
    """Whether the template writes the offered tools."""
    around_answer: tuple[str, str] = ("", "")
    """Markers and white space that the template writes before and after an answer, and that the model samples
    (`<|START_RESPONSE|>`)."""
    descriptions: bool = False
    """Whether the template fails on a tool without a description."""
    late_system: bool = True
    """Whether the template writes a system message that follows another message. Else it gets one as a user's message: some
    templates leave it out without an error (gpt-oss, Qwen3-VL), and others refuse the conversation (Qwen3.5)."""

    @property
    def has_thoughts(self) -> bool:
        return self.thoughts is not None or self.thought_parts

    def shaped(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages in the form that the template reads.

        Raises TaskError if the template would leave out a call or a result.
        """
        open_calls: dict[str, str] = {}  # id of each call without a result so far -> its id in the template
        shaped, called, count = [], False, 0
        for number, message in enumerate(_one_call_each(messages) if self.one_call else messages):
            if number and message["role"] == "system" and not self.late_system:
                message = {**message, "role": "user"}
            if message["role"] != "tool":
                called = bool(message.get("tool_calls"))
            elif self.results and not called and not self.lone_results:
                raise TaskError("the model's chat template writes the result of a tool only after a call of the tool")
            shaped.append(self._shaped(message, open_calls, count))
            count += len(message.get("tool_calls") or ())
        return shaped

    def shaped_tools(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_described(tool) for tool in tools] if self.descriptions else list(tools)

    def _shaped(self, message: Message, open_calls: dict[str, str], count: int) -> Message:
        if message["role"] == "tool":
            if not self.results:
                raise TaskError("the model's chat template writes no results of tool calls; use a task without tools")
            given = message.get("tool_call_id")
            if not isinstance(given, str):  # results without ids follow in the order of their calls
                given = next(iter(open_calls), None)
            if given is not None:
                message = {**message, "tool_call_id": open_calls.pop(given, None) or self._call_id(given)}
            return message
        open_calls.clear()
        if message["role"] == "assistant":
            if message.get("tool_calls"):
                message = {**message, "tool_calls": self._shaped_calls(message["tool_calls"], open_calls, count)}
                message = self._beside_text(message)
            if THOUGHTS in message and self.thoughts != THOUGHTS:
                message = self._with_thoughts(message)
        return message

    def _shaped_calls(
        self, calls: Sequence[dict[str, Any]], open_calls: dict[str, str], count: int
    ) -> list[dict[str, Any]]:
        """`count`: number of calls in earlier messages. Ids of the form NAMED count on through the conversation."""
        if not self.calls:
            what = f"fails at tool calls ({self.no_calls})" if self.no_calls else "writes no tool calls"
            raise TaskError(f"the model's chat template {what}; use a task without tools")
        shaped = []
        for number, call in enumerate(calls, count):
            function = {**call["function"], "arguments": self._arguments(call["function"].get("arguments"))}
            call = {**call, "function": function}
            if isinstance(id := call.get("id"), str):
                call["id"] = open_calls[id] = self._call_id(id, f"functions.{function['name']}:{number}")
            shaped.append(call)
        return shaped

    def _beside_text(self, message: Message) -> Message:
        """Return a message with calls in the form in which the template reads its text."""
        if not message.get("content"):
            return message
        if self.drops_calls:
            raise TaskError(
                "the model's chat template leaves out the calls of a message with text; send calls without text"
            )
        if self.preambles and message.get(THOUGHTS):
            return {**message, "content": "", THOUGHTS: f"{message[THOUGHTS]}{PREAMBLE}{message['content']}"}
        return message

    def _call_id(self, id: str, named: str = "") -> str:
        """Return an id in the template's form. `named`: the id that carries the name of the call's tool."""
        match self.call_ids:
            case CallIds.NINE if not NINE.fullmatch(id):
                return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
            case CallIds.NAMED if named and not NAMED.fullmatch(id):
                return named
        return id

    def _arguments(self, arguments: Any) -> Any:
        """Return arguments in the template's form. Arguments that are no object stay text if the template writes text as
        it is; else they become the only member of an object."""
        value = arguments
        if isinstance(arguments, str):
            try:
                value = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError):
                value = arguments
        value = {} if value is None else value
        if isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False) if self.arguments_as_text else value
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if self.arguments_as_text or self.any_arguments:
            return text
        return {"arguments": value}

    def _with_thoughts(self, message: Message) -> Message:
        rest = {key: value for key, value in message.items() if key != THOUGHTS}
        thoughts = message[THOUGHTS]
        if self.thoughts is not None:
            return {**rest, self.thoughts: thoughts}
        if self.thought_parts:
            text = [{"type": "text", "text": rest["content"]}] if rest.get("content") else []
            return {**rest, "content": [{"type": "thinking", "thinking": thoughts}, *text]}
        return rest


def fields_of(render: Render, parts: Collection[str], ends: Collection[str], source: str) -> TemplateFields:
    """Find out the fields of a template. `parts`: roles whose content the template reads as a list of parts. `ends`: texts of
    the tokens that end turns."""
    found = _Probe(render, parts, ends).fields()
    if not found.has_thoughts and THOUGHTS in source:  # it writes the thoughts only sometimes
        return replace(found, thoughts=THOUGHTS)
    return found


class _Probe:
    def __init__(self, render: Render, parts: Collection[str], ends: Collection[str]) -> None:
        self._render = render
        self._ends = re.compile("|".join(re.escape(end) for end in ends if end) or "$^")
        self._parts = parts
        self._error = ""
        """Error with which the last rendering failed; empty if it did not fail."""

    def fields(self) -> TemplateFields:
        text = self._text([self._user()], [TOOL])
        plain = self._text([self._user()], [])
        found = TemplateFields(
            tools=text is not None and NAME in text and NAME not in (plain or ""),
            descriptions=text is not None and self._text([self._user()], [_undescribed(TOOL)]) is None,
            lone_results=self._shows_last([self._user(), self._said(), self._result()], []),
            late_system=self._has_late_system(),
        )
        found = replace(self._with_calls(found), around_answer=self._around_answer())
        if found.calls and WORD not in (self._text(self._called(found, {"content": ANSWER}), [TOOL]) or WORD):
            found = replace(found, calls_with_content=False, drops_calls=True)
        found = replace(found, one_call=found.calls and self._writes_one_call(found))
        if found.calls and found.results:
            user = {"role": "user", "content": RESULT}
            found = replace(found, user_behind_results=self._shows_last([*self._called(found), user], [TOOL]))
        thoughts = next((name for name in THOUGHT_FIELDS if self._has_thoughts(found, {name: WORD})), None)
        if thoughts is None:
            return replace(found, thought_parts=self._has_thoughts(found, None))
        found = replace(found, thoughts=thoughts)
        if found.calls and self._text(self._called(found, {thoughts: WORD, "content": ANSWER}), [TOOL]) is None:
            joined = self._called(found, {thoughts: f"{WORD}{PREAMBLE}{ANSWER}"})
            preambles = self._has(f"{WORD}{PREAMBLE}{ANSWER}<|end|>", joined, [TOOL])
            return replace(found, calls_with_content=False, preambles=preambles)
        return found

    def _writes_one_call(self, found: TemplateFields) -> bool:
        """Return whether the template leaves out the second of two calls."""
        user, called, result = self._called(found)
        second = self._called(found, arguments={"command": ANSWER})[1]["tool_calls"][0]
        second["id"] = f"{second['id'][:-1]}b"
        calls = [*called["tool_calls"], second]
        text = self._text(
            [user, {**called, "tool_calls": calls}, result, {**result, "tool_call_id": second["id"]}], [TOOL]
        )
        return text is not None and WORD in text and ANSWER not in text

    def _around_answer(self) -> tuple[str, str]:
        prompt = self._text([self._user()], [])
        whole = self._text([self._user(), self._said(), {"role": "user", "content": RESULT}], [])
        if not (prompt and whole):
            return "", ""
        same = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
        before, found, after = whole[same:].partition(ANSWER)
        end = self._ends.search(after)
        if not found or end is None or len(before) > LONGEST_MARKER or end.start() > LONGEST_MARKER:
            return "", ""
        return _marker(before), _marker(after[: end.start()])

    def _with_calls(self, found: TemplateFields) -> TemplateFields:
        errors = []
        for ids in (CallIds.ANY, CallIds.NINE):
            for as_text in (False, True):
                shown = replace(found, calls=True, results=True, arguments_as_text=as_text, call_ids=ids)
                text = self._text(self._called(shown), [TOOL])
                errors.append(self._error)
                if text is None or WORD not in text or f"': '{WORD}" in text or f'\\"{WORD}' in text:
                    continue
                raw = f'{WORD} "{ANSWER}'
                written = self._text(self._called(replace(shown, any_arguments=True), arguments=raw), [TOOL])
                return replace(
                    shown,
                    results=self._shows_last(self._called(shown), [TOOL]),
                    call_ids=self._ids(shown),
                    any_arguments=written is not None and raw in written,
                )
        return replace(found, results=found.lone_results, no_calls=errors[0] if all(errors) else "")

    def _ids(self, found: TemplateFields) -> CallIds:
        if found.call_ids is CallIds.NINE:
            return CallIds.NINE
        messages = self._called(found)
        messages[-1].pop("name")
        text, bare = self._text(messages, [TOOL]), self._text([self._user()], [TOOL]) or ""
        if text is None:
            return CallIds.ANY
        named = f"functions.{NAME}:0" in text or text.count(NAME) <= bare.count(NAME)
        return CallIds.NAMED if named else CallIds.ANY

    def _has_thoughts(self, found: TemplateFields, field: dict[str, Any] | None) -> bool:
        """Return whether the template writes thoughts that are given in a field, or, without a field, in a part."""
        plain = self._said()
        part = {"content": [{"type": "thinking", "thinking": WORD}, {"type": "text", "text": ANSWER}]}
        if self._has(WORD, [self._user(), {**plain, **(part if field is None else field)}], prompt=False):
            return self._shows_as_text(WORD, [self._user(), {**plain, **(part if field is None else field)}])
        if not found.calls or field is None:
            return False
        with_thoughts = self._called(found, field, arguments="{}")
        return self._has(WORD, with_thoughts, [TOOL])

    def _has_late_system(self) -> bool:
        """Return whether the template writes a system message that is not the first message, at one place at least. A
        template that lets two roles alternate may refuse it at the others."""
        user, said, late = self._user(), self._said(), {"role": "system", "content": RESULT}
        first = {"role": "system", "content": WORD}
        starts = [user], [first, user], [user, said], [first, user, said], [first, user, said, user]
        return any(self._shows_last([*start, late], []) for start in starts)

    def _shows_last(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> bool:
        """Return whether the template writes the last message, whose text is RESULT. A template may change its text; then
        another text gives another rendering."""
        other = [*messages[:-1], {**messages[-1], "content": WORD}]
        text = self._text(messages, tools)
        if text is None:
            return False
        return RESULT in text.lower() or self._text(other, tools) != text == self._text(messages, tools)

    def _shows_as_text(self, word: str, messages: Sequence[Message]) -> bool:
        """Return whether a word is shown, and not within a printed object."""
        text = self._text(messages, [], prompt=False) or ""
        return f"': '{word}" not in text and f'": "{word}' not in text

    def _has(
        self, word: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, prompt: bool = True
    ) -> bool:
        return word in (self._text(messages, tools, prompt=prompt) or "")

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, prompt: bool = True) -> str | None:
        """Render the messages; None if the template refuses them or fails."""
        try:
            text = self._render([in_parts(m) if m["role"] in self._parts else m for m in messages], tools, prompt)
        except (TaskError, TemplateUnusable) as error:
            self._error = str(error) if isinstance(error, TemplateUnusable) else ""
            return None
        self._error = ""
        return text

    def _called(
        self, found: TemplateFields, more: dict[str, Any] | None = None, arguments: Any = None
    ) -> list[Message]:
        given = {"command": WORD} if arguments is None else arguments
        id = "call_00_long" if found.call_ids is CallIds.ANY else ID
        call = {"id": id, "type": "function", "function": {"name": NAME, "arguments": given}}
        called = {"role": "assistant", "content": "", "tool_calls": [call], **(more or {})}
        result = {**self._result(), "name": NAME, "tool_call_id": id}
        return replace(found, call_ids=CallIds.ANY, thoughts=THOUGHTS).shaped([self._user(), called, result])

    @staticmethod
    def _user() -> Message:
        return {"role": "user", "content": "quvo"}

    @staticmethod
    def _said() -> Message:
        return {"role": "assistant", "content": ANSWER}

    @staticmethod
    def _result() -> Message:
        return {"role": "tool", "content": RESULT}


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages, but a message of its own for each call, with the call's result behind it."""
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda m: m["role"] == "tool", messages[at:]))
        at += len(results)
        for call in calls:
            yield {**message, "tool_calls": [call]}
            message = {"role": message["role"], "content": ""}  # text and thoughts stand before the first call
            mine = next((k for k, r in enumerate(results) if r.get("tool_call_id") in (call.get("id"), None)), None)
            if mine is not None:
                yield results.pop(mine)
        yield from results


def _marker(text: str) -> str:
    """Return the text if it is a marker or white space; empty for other text, and for empty thoughts."""
    return text if not text.strip() or (MARKER.search(text) and "think" not in text.lower()) else ""


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or function.get("description") is not None:
        return tool
    return {**tool, "function": {**function, "description": ""}}


def _undescribed(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {k: v for k, v in tool["function"].items() if k != "description"}}

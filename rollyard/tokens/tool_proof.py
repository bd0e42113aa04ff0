"""Proof that the tool calls of a model are read.

The model's own chat template writes a turn with calls. The parser must read them back, in the template's spelling and in
the other spellings that models use, and the next prompt must show the results. A lost call would end a rollout with a
reward of 0 and no other sign. So the proof is made when a template is loaded, before the first model call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_turn import OPENED
from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, ToolCallParser, parse_safely, parser_for
from rollyard.tokens.tool_calls.parser_choice import parsers_that_read
from rollyard.tokens.tool_calls.spellings import other_spellings
from rollyard.wire.tool_proof import ToolProof

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Name of the place."},
                    "days": {"type": "integer", "description": "Number of days."},
                    "exact": {"type": "boolean", "description": "Whether to be exact."},
                },
                "required": ["place"],
            },
        },
    }
    for name, about in (("get_weather", "Tell the weather."), ("find_train", "Find a train."))
]
ONE = (ToolCall("get_weather", {"place": "Quito", "days": 3, "exact": True}),)
TWO = (ToolCall("get_weather", {"place": "Quito"}), ToolCall("find_train", {"place": "Lima", "exact": False}))
ASKED: list[Message] = [{"role": "user", "content": "What is the weather?"}]
THOUGHTS = "I have to look."
RESULTS = ("jexo", "wyfa")
"""Words that a next prompt must show."""
NAME_A_PARSER = "name a parser in the pool's `spec.model.toolParser`, or use tasks without tools"
QUOTED = 200
TAG_ENDS = re.compile(r"[>\]]")


Status = Literal["True", "False", "Unknown"]


class _Refuted(Exception):
    """Raised where the proof fails: (reason, message)."""


class _Doubted(Exception):
    """Raised where the template itself writes calls wrong, so that nothing is proven: (reason, message)."""


def prove_tool_calls(template: ChatTemplate, parser_name: str | None = None) -> ToolProof:
    """Try out calls under a template. `parser_name`: parser to use; None: the one that fits the template. Never raises."""
    try:
        status, reason, message = _proof(template, parser_name)
    except _Refuted as refuted:
        status, (reason, message) = "False", refuted.args
        message = f"{message}; {NAME_A_PARSER}"
    except _Doubted as doubted:
        status, (reason, message) = "Unknown", doubted.args
    except Exception as error:  # noqa: BLE001 - the parser may be a plug-in; a failed proof must not stop a pool
        status, reason, message = "Unknown", "ProofFailed", f"the proof failed: {error!r}"
    return ToolProof(status=status, reason=reason, message=message, parser=parser_name)


def _proof(template: ChatTemplate, parser_name: str | None) -> tuple[Status, str, str]:
    """Return status, reason and message. Raises _Refuted, _Doubted."""
    shows_tools, written = _shows(template, "find_train", ASKED), _written(template, ONE, "")
    if parser_name is None and not shows_tools and written is None:
        raise _Refuted("NoTools", "the model's chat template writes neither tools nor calls")
    try:
        parser = parser_for(template, parser_name, TOOLS)
    except TaskError as error:
        if parser_name is None:
            raise _Refuted("NoParser", _why_no_parser(str(error), written)) from None
        return "Unknown", "ParserMissing", str(error)
    named = f"the parser {parser_name or type(parser).__name__}"
    if written is None:
        why = template.fields.no_calls
        what = f"fails at calls, which stay text in its prompts ({why})" if why else "writes no calls"
        message = f"the model's chat template {what}; whether {named} reads the model's calls is not known"
        return "Unknown", "CallsNotShown", message
    tried = 0
    for calls, thoughts in ((ONE, ""), (ONE, THOUGHTS), (TWO, "")):
        written = _written(template, calls, thoughts)
        if written is None:  # some templates write one call a turn
            continue
        text, opened = written
        _compare(named, calls, parse_safely(parser, text, opened), text)
        tried += 1
        for spelling, other in other_spellings(text):
            if (read := parse_safely(parser, other, opened)).error is None:  # the model is told of an error
                _compare(f"{named}, with {spelling},", calls, read, other)
                tried += 1
        _check_results(template, parser, calls, text)
    message = f"{named} reads the calls that the model's chat template writes; {tried} spellings were tried"
    if not shows_tools:
        message = f"the model's chat template does not show tools, so a task's prompt must describe them; {message}"
        return "Unknown", "ToolsNotShown", message
    return "True", "ReadBack", message


def _why_no_parser(why: str, written: tuple[str, str] | None) -> str:
    """Return why no parser fits, with the text that the template writes and the parsers that read it."""
    if written is None:
        return why
    fitting = parsers_that_read(written[0], ONE, TOOLS)
    what = f"{', '.join(fitting)} would read" if fitting else "no parser of this node reads"
    return f"no parser fits the model's chat template; {what} its calls, such as {written[0][:QUOTED]!r}"


def _written(template: ChatTemplate, calls: Sequence[ToolCall], thoughts: str) -> tuple[str, str] | None:
    """Return (text that a model samples for these calls, marker with which the prompt opened its thoughts); None if the
    template does not write them."""
    answer: Message = {"role": "assistant", "content": "", "tool_calls": _fields(calls)}
    if thoughts:
        answer["reasoning_content"] = thoughts
    try:
        prompt, whole = template.render(ASKED, TOOLS, True), template.render([*ASKED, answer], TOOLS, False)
    except (TaskError, TemplateUnusable):
        return None
    if not all(str(call.arguments["place"]) in whole[whole.rfind("What is the weather?") :] for call in calls):
        return None
    start = next(
        (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), min(len(prompt), len(whole))
    )
    tag = max(prompt.rfind(mark, 0, start) for mark in "<[")
    if start < len(prompt) and tag >= 0 and not TAG_ENDS.search(prompt, tag, start):
        start = tag  # prompt and answer go on with tags that begin alike
    text = whole[start:]
    ends = [text.rfind(end) for end in template.ends.values() if end]
    opened = OPENED.search(prompt) if start == len(prompt) else None
    return text[: max(ends)] if max(ends, default=-1) >= 0 else text, opened[1] if opened else ""


def _compare(named: str, calls: Sequence[ToolCall], read: ParsedTurn, text: str) -> None:
    """Raise _Refuted if calls were lost or read wrong, and _Doubted if the template writes what no model should."""
    if tuple(read.calls) == tuple(calls):
        return
    where = f"in {text[:QUOTED]!r}, which the model's chat template wrote"
    if read.error is not None and not read.foreign:
        message = f"{named} refuses a call ({read.error}) {where}; a model that writes this is told so"
        raise _Doubted("CallsRefused", message)
    if [_quoted(call, text) for call in calls] == [call.arguments for call in read.calls]:
        raise _Doubted("TypesNotShown", f"the types of arguments do not show {where}")
    what = ", ".join(f"{call.name}({call.arguments})" for call in read.calls)
    if len(read.calls) < len(calls):
        what = f"{len(read.calls)} of {len(calls)} calls"
    raise _Refuted("CallsUnreadable", f"{named} reads {what} {where}")


def _quoted(call: ToolCall, text: str) -> dict[str, Any]:
    """Return the arguments of a call, those that a text has in quotes as texts."""
    return {key: str(value) if f'"{value}"' in text else value for key, value in call.arguments.items()}


def _check_results(template: ChatTemplate, parser: ToolCallParser, calls: Sequence[ToolCall], text: str) -> None:
    """Raise _Refuted if the prompt after the calls does not show their results."""
    conversation = Conversation(template, ASKED, TOOLS, parser=parser)
    conversation.prompt_ids()
    ids = [*template.encode_behind(template.stop_ids[0], text), template.stop_ids[0]]
    conversation.add_sampled(ids, [0.0] * len(ids), "", "stop")
    results = RESULTS[: len(calls)]
    conversation.add_results(results)
    try:
        prompt = template.decode(conversation.prompt_ids())
    except (TaskError, TemplateUnusable) as error:
        raise _Refuted("ResultsRefused", f"the model's chat template refuses results of calls: {error}") from None
    if missing := [word for word in results if word not in prompt.lower()]:
        shown = f"{len(results) - len(missing)} of {len(results)} results of calls"
        raise _Refuted("ResultsNotShown", f"the model's chat template shows {shown} in the next prompt")


def _shows(template: ChatTemplate, word: str, messages: Sequence[Message]) -> bool:
    try:
        return word in template.render(messages, TOOLS, True)
    except (TaskError, TemplateUnusable):
        return False


def _fields(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {"id": f"{k:09d}", "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for k, call in enumerate(calls)
    ]

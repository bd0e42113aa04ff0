"""Reads every spelling of a family's calls as an engine would write it under one template: as ids behind the template's prompt.

There are two writers: the template itself, and the forms of the family (`tests/tokens/tool_calls/family_forms.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.sampled_turn import OPENED
from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, parser_for
from rollyard.tokens.tool_calls.parser_choice import name_for
from rollyard.tokens.tool_calls.spellings import JSON_STYLES, in_json_style, other_spellings
from tests.support.template_oracle import TOOLS as SHOWN_TOOLS
from tests.support.template_oracle import Message, Oracle, Refused
from tests.tokens.tool_calls.family_forms import FORMS, Call, FamilyForm
from tests.tokens.tool_calls.spelled_values import NULLS, STOP, TOOLS, VALUES, calls

ASKED: list[Message] = [{"role": "user", "content": "What now?"}]
ONE, OTHER = ("get", {"path": "a"}), ("get", {"path": "b", "n": 2})
SPELLED: dict[str, Sequence[Call]] = {
    **{name: [("get", arguments)] for name, arguments in {**VALUES, **NULLS}.items()},
    "two calls": [ONE, OTHER],
    "a call without arguments and another": [STOP, ONE],
}
NULL = re.compile("null|None")
ALIKE = "texts that look like values"


@dataclass(frozen=True)
class Spelling:
    name: str
    text: str
    """Text that a model samples behind the prompt, without the token that ends the turn."""
    calls: Sequence[Call]


def misread(oracle: Oracle, template: ChatTemplate) -> Iterator[tuple[Spelling, str, str]]:
    """Read all spellings of the family whose marks the template has. Yield (spelling, kind, what is wrong). The kind is
    `lost` if a call disappeared in silence, `call` if it was read wrong, and empty if it was read right."""
    conversation = Conversation(template, ASKED, SHOWN_TOOLS, parser=parser_for(template, None, TOOLS))
    prompt = conversation.prompt_ids()
    opened = OPENED.search(template.decode(prompt))
    for spelling in [*_by_template(oracle), *_by_family(template.source, opened[1] if opened else "")]:
        ids = template.encode_behind(template.stop_ids[0], spelling.text)
        if any(token in template.stop_ids for token in ids[:-1]):  # the turn would have ended there
            continue
        if ids[-1] not in template.stop_ids:
            ids.append(template.stop_ids[0])
        turn = conversation.sibling()
        turn.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        yield spelling, *_wrong(spelling, turn.last.parsed)


def _wrong(spelling: Spelling, read: ParsedTurn) -> tuple[str, str]:
    meant = calls(*spelling.calls)
    if read.error is not None:
        return "call", f"error {read.error!r} in {spelling.text!r}"
    if len(read.calls) < len(meant):
        return "lost", f"{len(read.calls)} calls of {len(meant)} in {spelling.text!r}"
    if read.calls != meant or _types(read.calls) != _types(meant):
        return "call", f"{list(read.calls)} in {spelling.text!r}"
    if read.content:
        return "call", f"content {read.content!r} in {spelling.text!r}"
    return "", ""


def _types(made: Sequence[ToolCall]) -> list[dict[str, type]]:
    return [{key: type(value) for key, value in one.arguments.items()} for one in made]


def _by_template(oracle: Oracle) -> Iterator[Spelling]:
    """Yield the calls as the template writes them, and in the other spellings of its text."""
    for name, made in SPELLED.items():
        if len(made) > 1 and not oracle.parallel:
            continue
        answer = oracle.said("", [_field(k, one) for k, one in enumerate(made)])
        try:
            text = oracle.spoken(ASKED, answer, SHOWN_TOOLS)
        except Refused:
            continue
        if name in NULLS and not NULL.search(text):  # the template leaves it out
            continue
        yield Spelling(f"{name}, template", text, made)
        plain = name != ALIKE and not any("\n" in str(value) for _, given in made for value in given.values())
        others = other_spellings(text) if plain else ((style, in_json_style(text, style)) for style in JSON_STYLES)
        for style, other in others:
            if other != text:
                yield Spelling(f"{name}, template, {style}", other, made)


def _by_family(source: str, opened: str) -> Iterator[Spelling]:
    """Yield the calls in all forms of a family. `opened`: marker at the end of the prompt."""
    parser = name_for(source)
    for form, family in FORMS.items():
        for name, made in SPELLED.items() if family.parser == parser else ():
            if not _can_write(family, made):
                continue
            text = family.write(made)
            if opened and family.think is not None and opened == family.think[0]:
                text = f"Hm.\n{family.think[1]}\n\n{text}"
            yield Spelling(f"{name}, {form}", text.removeprefix(opened) if opened else text, made)


def _can_write(family: FamilyForm, made: Sequence[Call]) -> bool:
    """Return whether a form can show the values of calls: null, and line breaks at the ends of a text."""
    values = [value for _, arguments in made for value in arguments.values()]
    ends = any(str(value) != str(value).strip("\n") for value in values)
    return (family.nulls or None not in values) and not (family.trims and ends)


def _field(number: int, made: Call) -> Message:
    name, arguments = made
    return {"id": f"{number:09d}", "type": "function", "function": {"name": name, "arguments": dict(arguments)}}

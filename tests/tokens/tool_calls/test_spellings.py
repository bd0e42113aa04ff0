"""Each family's calls in the spellings that models use. A spelling that is read wrong would lose a call in silence."""

from __future__ import annotations

import re

import pytest

from rollyard.tokens.tool_calls import ToolCall
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.tokens.tool_calls.family_forms import FORMS, FamilyForm
from tests.tokens.tool_calls.spelled_values import NULLS, STOP, TOOLS, VALUES, calls, read

CLOSING = re.compile(
    r"</[^>]*>|<\|/[^>]*>|<[|｜][^<>]*end[|｜]>|<\|(?:END_ACTION|tools_suffix|call|eom)\|>|<\|close\|>\w+<\|sep\|>|<tool_call\|>"
    r"|<end_function_call>|\]<\]minimax\[>\[</\w+>"
)
"""Closing tags of all families."""
FAMILIES = pytest.mark.parametrize("family", FORMS.values(), ids=list(FORMS))


def stripped(call: ToolCall) -> ToolCall:
    """Return the call with no line breaks at the ends of its texts: without its tag a text does not show where it ends."""
    return ToolCall(call.name, {k: v.strip("\n") if isinstance(v, str) else v for k, v in call.arguments.items()})


@FAMILIES
def test_values_keep_their_text_and_their_type(family: FamilyForm) -> None:
    for arguments in (*VALUES.values(), *(NULLS.values() if family.nulls else ())):
        if family.trims and any(str(value) != str(value).strip("\n") for value in arguments.values()):
            continue  # the form cannot show line breaks at the ends
        turn = read(family, family.write([("get", arguments)]))
        assert turn.error is None, arguments
        assert turn.calls == calls(("get", arguments))
        assert [type(value) for value in turn.calls[0].arguments.values()] == [type(v) for v in arguments.values()]
        assert turn.content == "", arguments


@FAMILIES
def test_markup_inside_a_value_is_text(family: FamilyForm) -> None:
    for mark in family.markup:
        for text in (f"a {mark} b", f"{mark} at the beginning", f"on a line:\n{mark}\nb", "".join(family.markup)):
            for arguments in ({"text": text}, {"path": "a", "text": text, "n": 5}):
                turn = read(family, family.write([("get", arguments)]))
                assert (turn.error, turn.calls) == (None, calls(("get", arguments)))


@FAMILIES
def test_a_call_written_in_a_value_is_text(family: FamilyForm) -> None:
    """An agent that writes a page about tool calls."""
    example = family.write([("other", {"key": "value"}), STOP])
    if family.parser == "muse" or family.parser in ("gemma4", "functiongemma", "minimax_m3"):
        pytest.skip("the family's quotes are special tokens, which no text has")
    wanted = ("get", {"path": "a.md", "text": f"Write:\n{example}\nThat is all."})
    assert read(family, family.write([wanted])).calls == calls(wanted)
    assert read(family, family.write([wanted, STOP])).calls == calls(wanted, STOP)


@FAMILIES
def test_several_calls_and_the_text_around_them(family: FamilyForm) -> None:
    one, other = ("get", {"path": "a"}), ("get", {"path": "b", "n": 2})
    assert read(family, family.write([one, other, STOP])).calls == calls(one, other, STOP)
    assert read(family, family.write([STOP, one])).calls == calls(STOP, one)
    assert read(family, family.write([one, one])).calls == calls(one, one)
    turn = read(family, f"First I look.\n{family.write([one])}")
    assert (turn.content, turn.calls, turn.error) == ("First I look.", calls(one), None)
    if family.text_after:
        turn = read(family, f"I look.\n{family.write([one])}\nThen:\n{family.write([other])}\nDone.")
        assert (turn.calls, turn.error) == (calls(one, other), None)
        assert turn.content.split() == ["I", "look.", "Then:", "Done."]


@FAMILIES
def test_an_unknown_tool_is_left_to_the_caller(family: FamilyForm) -> None:
    wanted = ("no_such.tool-2", {"key": "value"})
    assert read(family, family.write([wanted])).calls == calls(wanted)


@FAMILIES
def test_thoughts_and_calls_are_told_apart(family: FamilyForm) -> None:
    if family.think is None:
        pytest.skip("the family's thoughts are messages")
    opening, closing = family.think
    one = ("get", {"path": "a"})
    call, whole = family.write([one]), f"{opening}\nI look.\n{closing}\n\n"
    turn = read(family, f"{whole}{call}")
    assert (turn.thoughts, turn.content, turn.calls, turn.error) == ("I look.", "", calls(one), None)
    turn = read(family, f"{whole}It is 4.")
    assert (turn.thoughts, turn.content, turn.calls, turn.error) == ("I look.", "It is 4.", (), None)
    assert turn.shown == f"{whole}It is 4."
    turn = read(family, f"I look.\n{closing}\n\nIt is 4.")  # the prompt opened the thoughts
    assert (turn.thoughts, turn.content, turn.calls, turn.error) == ("I look.", "It is 4.", (), None)
    turn = read(family, f"{opening}{closing}It is 4.")
    assert (turn.thoughts, turn.content) == ("", "It is 4.")
    assert read(family, "It is 4.").thoughts is None
    turn = read(family, f"{opening}half")
    assert (turn.thoughts, turn.content, turn.calls, turn.error) == ("half", "", (), None)
    turn = read(family, f"{whole}{call}{opening}More.{closing}It is 4.")
    if family.text_after:
        assert (turn.thoughts, turn.content, turn.calls) == ("I look.\n\nMore.", "It is 4.", calls(one))


@FAMILIES
def test_prose_about_calls_in_thoughts_is_no_call(family: FamilyForm) -> None:
    if family.think is None or not family.prose:
        pytest.skip("the family's thoughts are messages, or its marks are ordinary text")
    opening, closing = family.think
    mark = BUILT_IN[family.parser].make(TOOLS).marks[0]
    one = ("get", {"path": "a"})
    for prose in (f"The tag {mark} begins a call.", f"Maybe {family.write([one])} or not."):
        turn = read(family, f"{opening}{prose}{closing}\nNo.")
        assert (turn.thoughts, turn.content, turn.calls, turn.error) == (prose, "No.", (), None)
        turn = read(family, f"{prose}{closing}\nNo.")  # the prompt opened the thoughts
        assert (turn.thoughts, turn.content, turn.calls, turn.error) == (prose, "No.", (), None)
        turn = read(family, f"{opening}{prose}{closing}{family.write([STOP])}")
        assert (turn.thoughts, turn.calls, turn.error) == (prose, calls(STOP), None)
    turn = read(family, f"{opening}The tag {mark} begins a call.")
    assert (turn.content, turn.calls, turn.error) == ("", (), None)


@FAMILIES
def test_a_call_in_thoughts_that_are_not_closed_is_found(family: FamilyForm) -> None:
    if family.think is None or not family.prose:
        pytest.skip("the family's thoughts are messages, or its marks are ordinary text")
    opening, closing = family.think
    one = ("get", {"path": "a", "text": f"a {closing} b"})
    turn = read(family, f"{opening}I look.\n{family.write([one, STOP])}")
    assert (turn.thoughts, turn.calls, turn.error) == ("I look.", calls(one, STOP), None)


@FAMILIES
def test_a_missing_closing_tag_mixes_no_calls(family: FamilyForm) -> None:
    """Each closing tag of two calls is left out, one at a time: the calls are read, or the model is told."""
    wanted = calls(("get", {"path": "a", "n": 5}), ("get", {"path": "b", "n": 2}))
    text = family.write([(call.name, call.arguments) for call in wanted])
    for tag in CLOSING.finditer(text):
        turn = read(family, text[: tag.start()] + text[tag.end() :])
        if turn.error is None:
            assert [stripped(call) for call in turn.calls] == [*wanted], tag[0]
        else:
            assert turn.calls in (wanted, wanted[:1], ())


@FAMILIES
def test_a_call_that_is_cut_off_is_an_error(family: FamilyForm) -> None:
    text = family.write([("get", {"path": "a", "text": "one two three four"})])
    turn = read(family, text[: text.index("three")])
    assert turn.calls == ()
    assert turn.error
    first = ("get", {"path": "a"})
    text = family.write([first, ("get", {"text": "one two three four"})])
    turn = read(family, text[: text.index("three")])
    assert turn.calls in (calls(first), ())  # a broken list of JSON has no first call
    assert turn.error

"""Calls that write each argument between tags of its own: `<parameter=path>a</parameter>`.

A value may contain any tag, also those of calls. So the structure decides where a call and a value end:

- A call ends with the first closing sequence (`</parameter></function></tool_call>`) after which no more such sequences
  than calls with arguments follow.
- A value ends before the next argument: a tag with the name of an argument that the tool declares and the call does not
  have yet, or with another name if the rest of the call has no more closing than opening tags. Text between two arguments
  is an error.
- The closing tag of a value may be missing before an argument of the tool on a line of its own, and at the call's end.
- A call inside that is not closed, of a tool that exists, is the next call: this one has no end, and is malformed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rollyard.tokens.tool_calls.argument_types import ArgumentTypes
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_json import skip_space
from rollyard.tokens.tool_calls.family_parser import FamilyParser

NAME = re.compile(r"[^\s<>{}\"'=]+")


def _compiled(pattern: Callable[[Tags], str]) -> cached_property[re.Pattern[str]]:
    """Return a property of tags: the pattern, compiled at its first use."""
    return cached_property(lambda tags: re.compile(pattern(tags)))


@dataclass(frozen=True)
class Tags:
    """The tags of a family, as regular expressions. The groups `name` are the names of the tool and of the argument."""

    call: str
    """Beginning of a call."""
    call_ends: str
    argument: str
    value_ends: str
    group: str = "(?!)"
    """Tag in front of one or more calls."""
    group_ends: str = "(?!)"

    opens = _compiled(lambda tags: tags.call)
    opens_with_argument = _compiled(lambda tags: rf"(?:{_unnamed(tags.call)})\s*+(?:{_unnamed(tags.argument)})")
    grouped = _compiled(lambda tags: tags.group)
    group_closes = _compiled(lambda tags: rf"\s*(?:{tags.group_ends})")
    closes = _compiled(lambda tags: tags.call_ends)
    arguments = _compiled(lambda tags: tags.argument)
    value_closes = _compiled(lambda tags: tags.value_ends)

    @cached_property
    def ends(self) -> re.Pattern[str]:
        """Closing sequence of a call with arguments. `after` matches if more markup or the end of the text follows."""
        more = rf"\s*(?:{self.group_ends}|{self.group}|{_unnamed(self.call)}|\Z)"
        return re.compile(rf"(?:{self.value_ends})\s*(?:{self.call_ends})(?P<after>(?={more}))?")

    @cached_property
    def remains(self) -> re.Pattern[str]:
        """End of a call, with that of its last value or of its group."""
        return re.compile(rf"(?:{self.value_ends})\s*(?:{self.call_ends})|(?:{self.call_ends})\s*(?:{self.group_ends})")


def _without_tag_lines(text: str) -> str:
    """Return a value without the ends of the lines of its tags. A closing tag on a line of its own may be indented."""
    line_break = "\r\n" if text.startswith("\r\n") else "\n"
    if text.startswith(line_break):
        return re.sub(rf"{line_break}[ \t]*\Z", "", text).removeprefix(line_break)
    return text.removesuffix(line_break)


def _unnamed(pattern: str) -> str:
    return re.sub(r"\?P<\w+>", "?:", pattern)


class TaggedArguments(FamilyParser):
    """Parser of a family with such calls."""

    tags: Tags
    begins: str
    """Beginning of a call, in messages."""
    ends: str
    """End of a call, in messages."""
    trims = False
    """Whether the template writes a line break at both ends of a value."""
    python = False
    """Whether the template writes values as Python does."""

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self.types = ArgumentTypes(tools, python=self.python)
        self.remains = self.tags.remains

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        tags = self.tags
        group = tags.grouped.match(text, at)
        if group is not None:
            at = skip_space(text, group.end())
        opening = tags.opens.match(text, at)
        if opening is None:
            raise NoCall(f"{self.begins} is missing")
        while opening is not None:
            name = opening["name"].strip()
            if not NAME.fullmatch(name):
                raise MalformedCall("the name of the function is missing")
            body, at = self._body(text, opening.end(), group is not None)
            yield ToolCall(name, self._arguments(name, body))
            yield at
            opening = tags.opens.match(text, skip_space(text, at)) if group is not None else None
        if group is None:
            if (closing := tags.group_closes.match(text, at)) is not None:  # only the tag in front is missing
                yield closing.end()
            return
        closing, other = tags.group_closes.search(text, at), tags.grouped.search(text, at)
        if closing is None or (other is not None and other.start() < closing.start()):
            if (rest := text[at:].strip()) and self.begins.startswith(rest):
                raise MalformedCall(f"the closing tag {self.ends} is missing")  # the next call is cut off
            return  # it is missing
        if rest := text[at : closing.start()].strip():
            raise MalformedCall(f"something else stands behind {self.ends}: {rest[:40]!r}")
        yield closing.end()

    def value(self, tool: str, argument: re.Match[str], text: str) -> Any:
        """Return the value of an argument. `argument`: match of the argument's tag."""
        if self.trims:
            text = _without_tag_lines(text)
        name = argument["name"].strip()
        return self.types.schema(tool).argument(name).value(name, text)

    def _body(self, text: str, begin: int, grouped: bool) -> tuple[str, int]:
        """Return the text of a call's arguments, and the position behind the call."""
        tags = self.tags
        first = skip_space(text, begin)
        if (closing := tags.closes.match(text, first)) is not None:  # a call without arguments
            return "", closing.end()
        if tags.arguments.match(text, first) is None:
            raise MalformedCall(f"this is no argument: {text[first : first + 60]!r}")
        ends = list(tags.ends.finditer(text, first))
        calls = list(tags.opens_with_argument.finditer(text, first))
        end = self._end(ends, [call.start() for call in calls], grouped)
        if end is not None:
            stop, after = self._stop(text, end), end.end()
        elif (last := tags.closes.search(text, first)) is not None:  # no value before it has a closing tag
            stop, after = last.start(), last.end()
        else:
            raise MalformedCall(f"the closing tag {self.ends} is missing")
        inside = [call for call in calls if call.start() < stop]
        if len(inside) > sum(one.end() < after for one in ends) and any(self._is_tool(call) for call in inside):
            raise MalformedCall(f"a closing tag is missing before the next call; each call ends with {self.ends}")
        return text[first:stop], after

    def _end(self, ends: Sequence[re.Match[str]], calls: Sequence[int], grouped: bool) -> re.Match[str] | None:
        """Return the closing sequence of a call. `calls`: positions of other calls behind its name."""
        closed = [end.start() for end in ends if end["after"] is not None]
        for end in ends:
            open_behind = len(calls) - bisect_left(calls, end.end())
            closed_behind = len(closed) - bisect_left(closed, end.end())
            if closed_behind <= open_behind and (end["after"] is not None or not grouped):
                return end
        return ends[-1] if ends else None

    def _is_tool(self, call: re.Match[str]) -> bool:
        """Return whether the beginning of a call names a tool. Another one is a text about calls."""
        opening = self.tags.opens.match(call[0])
        return opening is not None and opening["name"].strip() in self.types.tools

    def _stop(self, text: str, end: re.Match[str]) -> int:
        """Return the position behind the closing tag of the last value."""
        closing = self.tags.value_closes.match(text, end.start())
        assert closing is not None
        return closing.end()

    def _arguments(self, tool: str, body: str) -> dict[str, Any]:
        tags, given = self.tags, dict[str, Any]()
        openings, closings = list(tags.arguments.finditer(body)), list(tags.value_closes.finditer(body))
        starts, ends = [one.start() for one in openings], [one.start() for one in closings]
        shut = {skip_space(body, one.end()) for one in closings}
        declared, this = self.types.schema(tool).names, 0
        while this < len(openings):
            opening = openings[this]
            name, following = opening["name"].strip(), bisect_left(starts, opening.end())
            while following < len(openings):
                at, other = starts[following], openings[following]["name"].strip()
                before = bisect_left(ends, at)
                new = other in declared and other not in given and other != name
                even = len(ends) - before <= len(starts) - following
                unclosed, apart = bisect_left(ends, opening.end()) == before, body[at - 1] == "\n" or not self.trims
                if (at in shut and (new or even)) or (new and apart and (unclosed or even)):
                    break
                following += 1
            stop = starts[following] if following < len(openings) else len(body)
            text = self._value_text(body, opening.end(), stop, closings, ends)
            closed = bisect_left(ends, stop) > bisect_left(ends, opening.end())
            if not closed and (other := re.search(rf"</(?:\w+=)?{re.escape(name)}>\s*\Z", text)) is not None:
                raise MalformedCall(f"{other[0].strip()} is not the closing tag of {name}")
            self._check_tags(text, declared - given.keys() - {name})
            given[name] = self.value(tool, opening, text)
            this = following
        return given

    def _check_tags(self, text: str, missing: Collection[str]) -> None:
        """Raise MalformedCall if a value goes on with the tag of another argument, and a part of the tag is missing."""
        if not missing or self.tags.value_closes.search(text) is None:
            return
        names = "|".join(map(re.escape, sorted(missing)))
        part = rf"<[^<>\n]*?\b(?:{names})\b|(?:<[^<>\n]*>)?(?:{names})\s*</"
        tag = re.search(rf"(?:{self.tags.value_ends})\s*({part})", text)
        if tag is not None:
            raise MalformedCall(f"this is no argument: {text[tag.start(1) : tag.start(1) + 60]!r}")

    def _value_text(
        self, body: str, begin: int, stop: int, closings: Sequence[re.Match[str]], ends: Sequence[int]
    ) -> str:
        """Return the text of a value without its closing tag."""
        last = bisect_left(ends, stop) - 1
        closing = closings[last] if last >= 0 and ends[last] >= begin else None
        if closing is None:  # the closing tag is missing
            return body[begin:stop].rstrip("\n") if not self.trims else body[begin:stop]
        if rest := body[closing.end() : stop].strip():
            raise MalformedCall(f"this is no argument: {rest[:60]!r}")
        return body[begin : closing.start()]

"""Positions of sampled turns in a rendering with which a new segment begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_turn import EMPTY_THOUGHTS, OPENED
from rollyard.tokens.segment_builder import PlacedTurn
from rollyard.tokens.template_rendering import CALL, MarkedRendering, Renderer, SampledMessage

WINDOW = 4096
"""Greatest number of characters between the beginning of a turn and its first placeholder."""
LONGEST_CUT = 64
"""Greatest number of characters in front of the name of an argument that belong to the argument."""
MARKER = re.compile(r"[<\[]\S|\w\n")
"""Beginning of a marker, or the end of a line."""


def locate_turns(
    rendered: str,
    marked: MarkedRendering,
    sampled: Sequence[SampledMessage],
    template: ChatTemplate,
    renderer: Renderer,
) -> Iterator[PlacedTurn]:
    """Yield the sampled turns that a rendering shows, in order.

    `marked`: rendering with placeholders, which shows where to search. A turn that the template changed is skipped. The
    search ends at the first text between turns that `rendered` does not contain.
    """
    position, free = 0, 0
    cuts = [LONGEST_CUT if seen.parts[0] == CALL else 0 for seen in marked.turns]
    texts = list(zip(marked.texts, [*cuts, 0], strict=True))
    for k, seen in enumerate(marked.turns):
        found, position = _find(rendered, *texts[k], position)
        if found < 0:
            return
        after, _ = _find(rendered, *texts[k + 1], position)
        if after < 0:
            return
        answer = sampled[seen.number]
        turn = answer.turn
        if turn.spellings:
            earliest = max(found, free)
            start, same = _beginning(rendered, answer.before, earliest, position)
            placed = _by_beginning(rendered, answer, renderer, start, after) if MARKER.search(same) else None
            placed = placed or _by_text(rendered, answer, earliest, position)
            # the turn's own white space may end the text before it
            lead = turn.text[: len(turn.text) - len(turn.text.lstrip())]
            bare = start - len(lead) * rendered[earliest:start].endswith(lead)
            if placed is None and not same.strip() and answer.parsed.thoughts is None:
                placed = _by_beginning(rendered, answer, renderer, bare, after)
            placed = placed or _without_thoughts(rendered, answer, template, renderer, earliest, position, after)
            if placed is None and not same.strip():
                placed = _by_beginning(rendered, answer, renderer, bare, after)
            if placed is not None:
                free = placed.end
                yield placed
        position = max(position, after)


def _find(rendered: str, text: str, cut: int, position: int) -> tuple[int, int]:
    """Return begin and end of a text in a rendering; (-1, -1) if it is not there. Up to `cut` characters at the end of the
    text may differ: a call without arguments has no text in front of an argument."""
    for length in range(len(text), max(len(text) - cut, 1) - 1, -1):
        if (found := rendered.find(text[:length], position)) >= 0:
            return found, found + length
    return -1, -1


def _by_beginning(
    rendered: str, answer: SampledMessage, renderer: Renderer, start: int, after: int
) -> PlacedTurn | None:
    """Find a turn from the position of its beginning. `after`: position behind its last field."""
    opened = answer.before[answer.before.rfind(answer.turn.opened) :] if answer.turn.opened else ""
    if not rendered[:start].endswith(opened):  # the template left out the marker that opened the thoughts
        return None
    if not opened and OPENED.search(rendered, max(start - LONGEST_CUT, 0), start):  # the marker is a part of the turn
        return None
    for end in dict.fromkeys((renderer.end_in(rendered, after), after)):
        if end is not None and start <= end and renderer.shows(answer, rendered[start:end]):
            respelled = rendered[start:end] not in answer.turn.spellings
            return _placed(rendered, answer, 0, start, end, respelled=respelled)
    return None


def _by_text(rendered: str, answer: SampledMessage, earliest: int, first: int) -> PlacedTurn | None:
    """Find the exact text of a turn. The model may itself have sampled a text before the first field."""
    for text in answer.turn.spellings:
        start = rendered.rfind(text, earliest, first + len(text)) if text else -1
        if start >= 0:
            return _placed(rendered, answer, 0, start, start + len(text), respelled=False)
    return None


def _without_thoughts(
    rendered: str,
    answer: SampledMessage,
    template: ChatTemplate,
    renderer: Renderer,
    earliest: int,
    first: int,
    after: int,
) -> PlacedTurn | None:
    """Find a turn whose thoughts the template left out: the exact text after the thoughts, or another spelling of it.

    The first tokens of white space may be missing in the rendering.
    """
    turn, parsed = answer.turn, answer.parsed
    rest = turn.text_after(parsed.thoughts) if parsed.thoughts is not None else turn.text
    if rest is None:
        return None
    opened = re.escape(turn.opened) + r"\s*" if turn.opened else EMPTY_THOUGHTS.pattern
    start, _ = _beginning(rendered, re.sub(f"(?:{opened})$", "", answer.before), earliest, first)
    endings = [(text, turn.index_of_ending(template, text)) for text in _without_space(rest)]
    for text, index in endings:
        begin = rendered.rfind(text, start, first + len(text)) if text else -1
        if begin >= 0 and index is not None:
            return _placed(rendered, answer, index, begin, begin + len(text), respelled=False)
    index = next((index for _, index in reversed(endings) if index is not None), None)
    ends = [end for end in dict.fromkeys((renderer.end_in(rendered, after), after)) if end is not None]
    for end in ends:  # the prompt had empty thoughts, and the turn has thoughts
        if not turn.opened and start < end and renderer.shows(answer, rendered[start:end]):
            return _placed(rendered, answer, 0, start, end, respelled=rendered[start:end] not in turn.spellings)
    if (empty := EMPTY_THOUGHTS.match(rendered, start)) is not None:
        start = empty.end()
    if rest[:1].isspace():  # this white space stands between thoughts and answer; the template has its own
        start += len(rendered[start:after]) - len(rendered[start:after].lstrip())
    for end in ends:
        if index is not None and start < end and renderer.shows(answer, rendered[start:end], thoughts=False):
            return _placed(rendered, answer, index, start, end, respelled=True)
    return None


def _without_space(text: str) -> Iterator[str]:
    """Yield the text, and then the text without its first characters of white space, one more each time."""
    for skipped in range(len(text) - len(text.lstrip()) + 1):
        yield text[skipped:]


def _beginning(rendered: str, before: str, earliest: int, latest: int) -> tuple[int, str]:
    """Return the position that follows the longest ending of `before`, where the turn begins, and this ending."""
    best, longest = latest, ""
    for position in range(latest, max(earliest, latest - WINDOW) - 1, -1):
        same = _common_ending(rendered, position, before)
        if len(same) > len(longest):
            best, longest = position, same
    return best, longest


def _common_ending(rendered: str, position: int, before: str) -> str:
    same = 0
    while same < min(position, len(before)) and rendered[position - 1 - same] == before[-1 - same]:
        same += 1
    return before[len(before) - same :]


def _placed(rendered: str, answer: SampledMessage, first: int, start: int, end: int, *, respelled: bool) -> PlacedTurn:
    ended = bool(answer.turn.end) and rendered.startswith(answer.turn.end, end)
    return PlacedTurn(answer.number, first, start, end + len(answer.turn.end) * ended, ended, respelled)

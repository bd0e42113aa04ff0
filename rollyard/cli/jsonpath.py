"""kubectl's jsonpath templates: `{.items[*].metadata.name}`, filters, `{range}`; unsupported syntax is refused.

The page "JSONPath Support" of the Kubernetes documentation describes this dialect. As in kubectl, a missing field
selects nothing, spaces separate several values, and text outside braces is copied.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.core.errors import BadRequest

Step = Callable[[list[Any]], list[Any]]
"""One step of a path: a function from the nodes selected so far to the nodes that the step selects."""

_TOKEN = re.compile(
    r"""\.\.(?P<deep>\*|[\w-]+)
      | \.(?P<field>\*|(?:[\w-]|\\.)+)
      | \[(?P<filter>\?\(.*?\))\]
      | \[(?P<inside>(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]'"])*)\]""",
    re.VERBOSE,
)
_BLOCK = re.compile(r"""\{((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^{}'"])*)\}""")
_COMPARE = re.compile(r"\?\(\s*@(?P<left>[^=!<>]*?)\s*(?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<right>.+?)\s*)?\)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
HELP = 'paths look like {.status.replicas.ready}, {.items[*].metadata.name} or {.status.conditions[?(@.type=="Ready")].reason}'


def jsonpath(data: Any, template: str) -> str:
    """Replace each path in the template by the values that it selects. Raises BadRequest for unsupported syntax."""
    parts = list(_parts(template if "{" in template else "{" + template + "}"))
    return "".join(_render(parts, data))


@dataclass(frozen=True)
class _Block:
    """The content of a pair of braces."""

    text: str


def _parts(template: str) -> Iterator[str | _Block]:
    at = 0
    for match in _BLOCK.finditer(template):
        if match.start() > at:
            yield _plain(template[at : match.start()])
        yield _Block(match[1].strip())
        at = match.end()
    if at < len(template):
        yield _plain(template[at:])


def _plain(text: str) -> str:
    if "{" in text or "}" in text:
        raise _unsupported(text, "a brace is not closed")
    return text


def _render(parts: Sequence[str | _Block], data: Any) -> Iterator[str]:
    position = 0
    while position < len(parts):
        part = parts[position]
        position += 1
        if isinstance(part, str):
            yield part
        elif part.text == "end":
            raise _unsupported("{end}", "no {range} precedes it")
        elif re.match(r"range\b", part.text):
            end = _end(parts, position)
            for item in _pick(part.text.removeprefix("range").strip(), data):
                yield from _render(parts[position:end], item)
            position = end + 1
        elif part.text[:1] in ("'", '"'):
            yield _literal(part.text)
        else:
            yield " ".join(n if isinstance(n, str) else json.dumps(n) for n in _pick(part.text, data))


def _end(parts: Sequence[str | _Block], start: int) -> int:
    depth = 1
    for position in range(start, len(parts)):
        part = parts[position]
        if isinstance(part, _Block):
            depth += 1 if re.match(r"range\b", part.text) else -1 if part.text == "end" else 0
            if not depth:
                return position
    raise _unsupported("{range}", "no {end} follows it")


def _pick(path: str, data: Any) -> list[Any]:
    return _follow_steps(_steps(path), data)


def _steps(path: str) -> Iterator[Step]:
    rest = path.removeprefix("$").removeprefix("@")
    if rest in ("", "."):
        return
    if rest[0] not in ".[":
        rest = "." + rest  # kubectl accepts {metadata.name} too
    at = 0
    while at < len(rest):
        match = _TOKEN.match(rest, at)
        if match is None:
            raise _unsupported(path, f"cannot read {rest[at:]!r}")
        at = match.end()
        yield _step(match, path)


def _step(match: re.Match[str], path: str) -> Step:
    if (name := match["deep"]) is not None:
        return lambda nodes: _children([d for n in nodes for d in _descendants(n)], name)
    if (name := match["field"]) is not None:
        return lambda nodes: _children(nodes, re.sub(r"\\(.)", r"\1", name) if name != "*" else name)
    if match["filter"] is not None:
        return _filter(match["filter"], path)
    return _subscript(match["inside"].strip(), path)


def _children(nodes: Sequence[Any], name: str) -> list[Any]:
    if name != "*":
        return [n[name] for n in nodes if isinstance(n, dict) and name in n]
    return [c for n in nodes for c in (n.values() if isinstance(n, dict) else n if isinstance(n, list) else ())]


def _descendants(node: Any) -> Iterator[Any]:
    yield node
    for child in _children([node], "*"):
        yield from _descendants(child)


def _filter(text: str, path: str) -> Step:
    match = _COMPARE.fullmatch(text)
    if match is None or "&&" in text or "||" in text:
        raise _unsupported(path, f'cannot read the filter [{text}]; write one comparison, such as [?(@.type=="Ready")]')
    left = list(_steps(match["left"]))
    if match["op"] is None:
        return lambda nodes: [i for i in _children(nodes, "*") if _follow_steps(left, i)]
    compare, right = _OPERATORS[match["op"]], _literal(match["right"])

    def holds(item: Any) -> bool:
        try:
            return any(compare(found, right) for found in _follow_steps(left, item))
        except TypeError:
            return False  # Python cannot order a number and a text

    return lambda nodes: [i for i in _children(nodes, "*") if holds(i)]


def _follow_steps(steps: Iterable[Step], node: Any) -> list[Any]:
    nodes = [node]
    for step in steps:
        nodes = step(nodes)
    return nodes


def _subscript(inside: str, path: str) -> Step:
    if inside == "*":
        return lambda nodes: _children(nodes, "*")
    if match := re.fullmatch(r"(-?\d*):(-?\d*)(?::(-?\d+))?", inside):
        cut = slice(*(int(word) if word else None for word in match.groups()))
        return lambda nodes: [i for n in nodes if isinstance(n, list) for i in n[cut]]
    words = [word.strip() for word in inside.split(",")] if not re.search(r"['\"].*,.*['\"]", inside) else None
    names = re.findall(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", inside)
    if words and all(re.fullmatch(r"-?\d+", word) for word in words):
        places = [int(word) for word in words]
        return lambda nodes: [n[i] for n in nodes if isinstance(n, list) for i in places if -len(n) <= i < len(n)]
    if names and re.sub(r"[\s,]", "", inside) == re.sub(r"[\s,]", "", "".join(names)):
        keys = [str(_literal(name)) for name in names]
        return lambda nodes: [n[k] for n in nodes if isinstance(n, dict) for k in keys if k in n]
    raise _unsupported(path, f"cannot read [{inside}]")


def _literal(text: str) -> Any:
    """Parse a quoted text, a number, true, false or null."""
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise _unsupported(text, "a quote is not closed")
        escapes = {"n": "\n", "t": "\t", "r": "\r"}
        return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), text[1:-1])
    try:
        return json.loads(text)
    except ValueError:
        raise _unsupported(text, "a word is not in quotes") from None


def _unsupported(where: str, what: str) -> BadRequest:
    return BadRequest(f"jsonpath {where!r}: {what}; {HELP}")

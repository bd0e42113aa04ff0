"""YAML loader of manifests, without YAML's traps.

`12:00:00`, `010`, `on` and `yes` stay strings; plain PyYAML reads `12:00:00` as 43200. A key that occurs twice is an
error. The mistakes in a text are reported together, each as `file:line:column: path: message`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from rollyard.core.errors import Invalid
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import KINDS
from rollyard.kinds.schema.fields import Path
from rollyard.kinds.schema.validation import Problem, parse
from rollyard.kinds.values.paths import make_absolute

MAX_NODES = 100_000
"""Greatest number of nodes in a document. With aliases, even a short text may have a huge number of nodes."""
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Loader with the types of YAML 1.2's core schema, but without octal and hexadecimal numbers, infinity and NaN."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,17})", [*"-+0123456789"]),
    ("float", r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", [*"-+.0123456789"]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


@dataclass
class _Document:
    """One document as plain data, with the position of each of its parts."""

    data: Any = None
    keys: dict[Path, yaml.Mark] = field(default_factory=dict)
    values: dict[Path, yaml.Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise RecursionError
        self.values[path] = node.start_mark
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            text = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            below = (*path, text)
            if text == "<<" and key_node.tag == _TAG + "str":
                message = "merge keys are not supported; write the fields here, or use an alias for a whole value"
                self._add_problem(below, key_node.start_mark, message)
            elif key_node.tag != _TAG + "str":
                self._add_problem(
                    (*path, text or "?"), key_node.start_mark, f'a key must be a string; write "{text}" in quotes'
                )
            elif text in found:
                first = self.keys[below].line + 1
                self._add_problem(
                    below, key_node.start_mark, f"is given twice, first on line {first}; keep one of them"
                )
            else:
                self.keys[below] = key_node.start_mark
                found[text] = self.build(value_node, below)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        text = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if str(text).lower() in ("true", "false"):
                return str(text).lower() == "true"
            case "int" if re.fullmatch(r"[-+]?[0-9]{1,18}", str(text)):
                return int(text)
            case "float" if re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", str(text)):
                number = float(text)
                return number if math.isfinite(number) else text
        self._add_problem(path, node.start_mark, f"the tag {node.tag} is not supported; write plain values")
        return None

    def _add_problem(self, path: Path, mark: yaml.Mark, message: str) -> None:
        # Several mistakes may have the same path, so the position is stored with each mistake.
        self.problems.append(_LocatedProblem(path, message, mark=mark))

    def locate(self, problem: Problem) -> yaml.Mark:
        """Position of a problem: the key if the key is wrong or the value begins on another line, else the value."""
        if isinstance(problem, _LocatedProblem):
            return problem.mark
        path = problem.path
        while path not in self.values:
            path = path[:-1]
        value = self.values[path]
        key = self.keys.get(path, value)
        return key if problem.at_key or value.line != key.line else value


@dataclass(frozen=True, kw_only=True)
class _LocatedProblem(Problem):
    mark: yaml.Mark


def load_manifests(text: str, source: str, base: str | None = None) -> list[KindObject]:
    """Load the objects of a YAML (or JSON) text with one or more documents. A v1 `List` is replaced by its items.

    `base`: folder from which relative paths are resolved. `source`: file name for reports of mistakes. Raises Invalid
    with one line of text for each mistake. Each mistake in an object also gives a `Cause` of the error. Text that
    is not YAML gives no `Cause`.
    """
    objects: list[KindObject] = []
    lines: list[str] = []
    problems: list[Problem] = []
    for document in _documents(text, source, lines):
        mistakes = list(document.problems)
        for data, above in _items(document.data):
            if base is not None:
                make_absolute(data, base)
            obj, found = _check(data)
            mistakes += [Problem((*above, *p.path), p.message, p.reason, p.at_key) for p in found]
            objects += [obj] if obj else []
        marked = sorted(((document.locate(p), p) for p in mistakes), key=lambda pair: (pair[0].line, pair[0].column))
        lines += [f"{source}:{m.line + 1}:{m.column + 1}: {p}" for m, p in marked]
        problems += [p for _, p in marked]
    if lines:
        raise Invalid("\n".join(lines), causes=[p.cause() for p in problems])
    return objects


def _documents(text: str, source: str, lines: list[str]) -> Iterator[_Document]:
    """Yield each document that is not empty. If the text is not YAML, is nested too deeply or has too many nodes, add
    the error to `lines` and stop."""
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            document = _Document()
            document.data = document.build(node, ())
            if document.data is not None or document.problems:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is not None and (found := _key_without_space(text, error)) is not None:
            lines.append(f"{source}:{found}")
            return
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        lines.append(f"{source}:{place}: {', '.join(w for w in (error.context, error.problem) if w)}")
    except yaml.YAMLError as error:
        lines.append(f"{source}:1:1: {error}")
    except RecursionError:
        lines.append(f"{source}:1:1: it is nested too deeply, or an alias contains itself; write it out")


def _key_without_space(text: str, error: yaml.MarkedYAMLError) -> str | None:
    """Return LINE:COLUMN: MESSAGE if a line is `key:value` without a space. YAML takes the line for the beginning of a text,
    and complains about the next line."""
    lines = text.splitlines()
    near = [error.context_mark.line] if error.context_mark is not None else []
    if error.problem_mark is not None:
        near += [n for n in range(error.problem_mark.line - 1, -1, -1) if n < len(lines) and lines[n].strip()][:1]
    for n in near:
        found = re.fullmatch(r"(\s*(?:- )?)([A-Za-z][\w./-]*):(\S.*)", lines[n]) if n < len(lines) else None
        if found is not None:
            place = f"{n + 1}:{len(found[1]) + 1}"
            return f'{place}: "{found[2]}:{found[3]}" has no space after the colon; write "{found[2]}: {found[3]}"'
    return None


def _items(data: Any) -> Iterator[tuple[Any, Path]]:
    is_list = isinstance(data, dict) and data.get("kind") == "List" and data.get("apiVersion") == "v1"
    if is_list and isinstance(data.get("items"), list):
        yield from ((item, ("items", i)) for i, item in enumerate(data["items"]))
    else:
        yield data, ()


def _check(data: Any) -> tuple[KindObject | None, list[Problem]]:
    obj, problems = parse(data)
    word = data.get("kind") if isinstance(data, dict) else None
    if isinstance(word, str) and word in KINDS and not KINDS[word].USER_WRITTEN:
        choices = ", ".join(name for name, kind in KINDS.items() if kind.USER_WRITTEN)
        return None, [Problem(("kind",), f"Rollyard creates every {word} itself; write one of {choices}")]
    return obj, problems

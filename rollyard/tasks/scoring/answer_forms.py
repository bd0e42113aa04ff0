"""Reads the outermost form of an answer: a scalar, a list, a set, an interval, a matrix. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from rollyard.tasks.scoring.answer_text import is_bracketed, split_at, without_spaces
from rollyard.tasks.scoring.numerals import numeral
from rollyard.tasks.scoring.units import split_unit

BRACKETS = ("()", "[]", "(]", "[)")
_NAME = re.compile(r"(?:\\text\{[^{}]*\}|_\{?[a-zA-Z0-9]++\}?|[a-zA-Z\\ '|(),{}])++")
_NO_NAME = re.compile(
    r"\bnot\b|\\(?:ne|lnot|frac|sqrt|sin|cos|tan|cot|sec|csc|ln|log|exp|pi|infty|binom|lfloor|lceil|int|sum|prod)"
)
_RELATION = re.compile(r"(\\le(?![a-z])|\\ge(?![a-z])|<|>)")
_TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_REALS = r"(-\infty,\infty)"
_WITHOUT = re.compile(rf"{re.escape(_REALS)} ?(?:\\setminus|\\backslash|\\) ?\\{{(?P<points>.*)\\}}")
_UNEQUAL = re.compile(r"(?P<name>[a-zA-Z]) ?(?:\\neq?(?![a-z])|≠) ?(?P<points>.*)")
_BUILDER = re.compile(r"\\\{ ?(?P<name>[a-zA-Z]) ?(?:\\in [^|:]*?)?(?:\\mid(?![a-z])|[|:]) ?(?P<condition>.*)\\\}")
_MATRIX = re.compile(r"\(?\\begin\{(?:[pb]?matrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{(?:[pb]?matrix|array)\}\)?")


@dataclass(frozen=True)
class Form:
    """A scalar, or a form with members, such as a list."""

    kind: str
    """One of scalar, list, set, union, matrix, row, or the two brackets of a tuple or interval."""
    text: str = ""
    members: tuple[Form, ...] = ()

    @property
    def words(self) -> str:
        """The kind, for people."""
        if self.kind == "scalar":
            return "one value"
        return f"a {self.kind}" if self.kind not in BRACKETS else f"a tuple or an interval in {' '.join(self.kind)}"

    @property
    def of_intervals(self) -> bool:
        """Whether it is a list of intervals, such as `x < 1` or `x > 2`."""
        return self.kind == "list" and all(member.kind in BRACKETS for member in self.members)


def parse_form(text: str) -> Form:
    """Return the outermost form of a normalized text, with its members."""
    text = text.strip()
    bare = split_unit(text)[0]
    if numeral(bare) or numeral(without_spaces(bare)):  # 15,070 is not a list
        return Form("scalar", text)
    if found := _BUILDER.fullmatch(text):
        return parse_form(found["condition"])
    if (found := _WITHOUT.fullmatch(text) or _UNEQUAL.fullmatch(text)) and (pieces := _reals_without(found["points"])):
        return Form("union", text, pieces)
    sides = split_at(text, "=")
    if len(sides) == 1 and len(parts := split_at(text, r"\in ")) == 2 and is_name(parts[0]):
        return parse_form(parts[1])
    if len(sides) == 2 and (value := equation(text)[1]) is not None and (inner := parse_form(value)).kind != "scalar":
        return inner
    if len(parts := split_at(text, ",")) > 1:
        return Form("list", text, tuple(parse_form(part) for part in parts))
    if len(sides) == 1 and (interval := _interval(text)):
        return interval
    if len(parts := split_at(text, r"\cup")) > 1:
        return Form("union", text, tuple(parse_form(part) for part in parts))
    if len(sides) <= 2 and r"\pm" in text:
        return Form("list", text, tuple(parse_form(_with_sign_chosen(text, sign)) for sign in "+-"))
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in matrix[1].split(r"\\") if row.strip()]
        return Form("matrix", text, tuple(Form("row", row, tuple(map(parse_form, row.split("&")))) for row in rows))
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return Form("set", text, tuple(parse_form(part) for part in split_at(text[2:-2], ",") if part.strip()))
    if is_bracketed(text):
        inside = text[1:-1]
        if text[0] + text[-1] == "{}" and numeral(inside):
            return parse_form(inside)
        parts = split_at(inside, ",")
        if len(parts) > 1:
            kind = text[0] + text[-1]
            return Form("set" if kind == "{}" else kind, text, tuple(map(parse_form, parts)))
        if text[0] + text[-1] in ("()", "{}"):
            return parse_form(inside)
    return Form("scalar", text)


def equation(text: str) -> tuple[str, str | None]:
    """Split `x = value` into name and value. For a text without `=`, return an empty name and the text. For any other
    equation return an empty name and None."""
    sides = [side.strip() for side in split_at(text, "=")]
    if len(sides) == 1:
        return "", text
    if len(sides) == 2:
        for name, value in (sides, sides[::-1]):
            if is_name(name) and without_spaces(name) not in value:
                return without_spaces(name), value
    return "", None


def named_tuple(form: Form) -> Form | None:
    """Return the tuple of a list such as `x = 1, y = 2`, in the alphabetical order of the names."""
    named = [equation(member.text) for member in form.members]
    names = [name for name, _ in named]
    if form.kind != "list" or len({*names}) < len(names) or not all(re.fullmatch(r"[a-z]", name) for name in names):
        return None
    values = [value for _, value in sorted(named, key=lambda pair: pair[0]) if value is not None]
    return Form("()", form.text, tuple(map(parse_form, values)))


def is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text.strip())) and not _NO_NAME.search(text)


def _interval(text: str) -> Form | None:
    """Read an inequality as an interval: x > 2 as (2, \\infty), 1 < x \\le 2 as (1, 2], |x| < 3 as (-3, 3)."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) == 3 and is_name(parts[2]):
        parts = [parts[2], _TURNED[parts[1]], parts[0]]
    if len(parts) == 3 and is_name(parts[0]):
        return _half_line(text, *parts)
    if len(parts) == 5 and {parts[1], parts[3]} <= {">", r"\ge"}:
        parts = [parts[4], _TURNED[parts[3]], parts[2], _TURNED[parts[1]], parts[0]]
    if len(parts) == 5 and is_name(parts[2]) and {parts[1], parts[3]} <= {"<", r"\le"}:
        kind = ("[" if parts[1] == r"\le" else "(") + ("]" if parts[3] == r"\le" else ")")
        return Form(kind, text, tuple(map(parse_form, (parts[0], parts[4]))))
    return None


def _reals_without(points: str) -> tuple[Form, ...]:
    """Return the intervals between the given points; empty if a point is not a plain number."""
    numbers = [
        (found.value, text.strip()) for text in split_at(points, ",") if (found := numeral(text.strip())) is not None
    ]
    if len(numbers) < len(split_at(points, ",")):
        return ()
    ends = [r"-\infty", *(text for _, text in sorted(numbers)), r"\infty"]
    return tuple(Form("()", f"({a},{b})", (parse_form(a), parse_form(b))) for a, b in pairwise(ends))


def _half_line(text: str, name: str, relation: str, end: str) -> Form:
    above, closed = relation in (">", r"\ge"), relation in (r"\ge", r"\le")
    left = Form("(]" if closed else "()", text, (parse_form(r"-\infty"), parse_form(end)))
    right = Form("[)" if closed else "()", text, (parse_form(end), parse_form(r"\infty")))
    if not (name.startswith("|") and name.endswith("|")):
        return right if above else left
    negative = parse_form(f"-{end}" if numeral(end) else f"-({end})")
    if not above:
        return Form("[]" if closed else "()", text, (negative, parse_form(end)))
    return Form("union", text, (Form(left.kind, text, (left.members[0], negative)), right))


def _with_sign_chosen(text: str, sign: str) -> str:
    """Replace \\pm by the given sign."""
    return re.sub(r"^\+", "", text.replace(r"\pm", sign))

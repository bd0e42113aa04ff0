"""Judges an answer to a `math` task by the rule in docs/math.md. Runs as a checker process.

An answer with the text of the reference is right. Otherwise the form of the reference decides. If the reference is a
number, the answer must be a number with nothing left to compute. If the reference is a tuple, interval, union or
matrix, the answer must have the same form, with right members. If the reference is a list or a set, the answer must be
a list or a set, with right members. If the reference is a word in `\\text` or of more than three letters, the answer
must be this word. Any other reference is compared by algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rollyard.node.agents.scoring.checker_process import serve
from rollyard.node.agents.scoring.latex_algebra import UnreadableExpression, same_expression
from rollyard.node.agents.scoring.numerals import Numeral, numeral, same_number

CPU_SECONDS = 2
MEMORY_BYTES = 2 << 30
MAX_MEMBERS = 100
MAX_DEPTH = 30

_SAME = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≈": r"\approx ", "≤": r"\le ",
    "≥": r"\ge ", "°": r"^\circ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "**": "^", r"\$": "", "$": "",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
}  # fmt: skip
_REWRITTEN = [
    (r"(?<=\d)\\,(?=\d{3}(?!\d))", "{,}"),
    (r"(?<!\\)\\[()\[\]!]|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?|\\(?:displaystyle|limits)(?![a-zA-Z])", ""),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"\\(?:mathrm|mathbf|mathit|textbf|textit|textrm|mbox|operatorname|rm)\{", r"\\text{"),
    (r"\\text\{([^{}]*\d[^{}]*)\}", r"\1"),
    (r"^\s*\\boxed\{(.*)\}\s*$", r"\1"),
    (r"\\lbrace(?![a-z])", r"\\{"),
    (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\(?:leq|leqslant)(?![a-z])", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-z])", r"\\ge "),
    (r"\\(?:simeq|approx)(?![a-z])", "="),
    (r"(?<!\\)\\[;:, ]|~|\\q?quad(?![a-z])|\s", " "),
    (r"\^(?:\\circ|\{\\circ\})(?:\s*[CF](?![a-z]))?|\\degree|\\text\{\s*degrees?\s*\}", ""),
    (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
    (r"\\frac\s*(\\[a-z]+|\w)\s*(\\[a-z]+|\w)", r"\\frac{\1}{\2}"),
    (r"(?:\\text\{)\s*,?\s*(?:and|or)\s*\}|\s(?:and|or)\s", ","),
    (r"(\d)_\{?\d+\}?$", r"\1"),
    (r"(?<=\d)\s*(?:percent|\\text\{\s*percent\s*\})$", r"\\%"),
]  # fmt: skip
_NAME = re.compile(r"(?:\\text\{[^{}]*\}|_\{?[a-zA-Z0-9]++\}?|[a-zA-Z\\ '|(),{}])++")
_NO_NAME = re.compile(
    r"\bnot\b|\\(?:ne|lnot|frac|sqrt|sin|cos|tan|cot|sec|csc|ln|log|exp|pi|infty|binom|lfloor|lceil|int|sum|prod)"
)
_NO_SCALE = r"(?![^{}]*(?:hundred|thousand|million|billion|trillion|dozen|percent))"
_UNIT = re.compile(
    rf"(?P<number>.*[\d.}}])\s*(?:\\text\{{{_NO_SCALE}[^{{}}\d]*\}}(?:\^\{{?\d\}}?)?"
    rf"|(?:\s|(?<=\d)){_NO_SCALE}[a-zA-Z][a-zA-Z]+[a-zA-Z. ]*(?:\^\{{?\d\}}?)?)\.?"
)
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_RELATION = re.compile(r"(\\le(?![a-z])|\\ge(?![a-z])|<|>)")
_WORD = re.compile(r"[^\W\d_][^\W\d_ .'-]*(?:[ .'-]+[^\W\d_]+)*\.?")
_MATRIX = re.compile(r"\\begin\{(?:[pb]?matrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{(?:[pb]?matrix|array)\}")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Form:
    """A scalar, or a form with members, such as a list."""

    kind: str
    """One of scalar, list, set, union, matrix, row, or the two brackets of a tuple or interval."""
    text: str = ""
    members: tuple[Form, ...] = ()


class BadReference(Exception):
    pass


def judge_answer(reference: bytes, answer: bytes) -> dict[str, float]:
    """Return {"right": 1.0 or 0.0}. Return {"bad_reference": 1.0} if the normalized reference is empty, or if its
    braces are unbalanced, or nested too deeply. An empty answer is wrong; for it every member of the reference is
    computed, so that the caller sees a reference that exceeds the limits."""
    try:
        return {"right": float(is_right(reference.decode(), answer.decode()))}
    except BadReference:
        return {"bad_reference": 1.0}
    except (ValueError, TypeError, ArithmeticError, RuntimeError, LookupError, AttributeError):
        return {"right": 0.0}


def is_right(reference: str, answer: str) -> bool:
    """Return whether the answer is right. Raises BadReference."""
    reference, answer = normalized(reference), normalized(answer)
    if not reference or not _balanced(reference):
        raise BadReference(reference)
    if _without_spaces(reference) == _without_spaces(answer):
        return True
    if not answer:
        _compute(parse_form(reference))
        return False
    return _balanced(answer, "{}()[]") and _same(parse_form(reference), parse_form(answer))


def normalized(text: str) -> str:
    """Remove layout, degree signs and the base of a number, such as the 2 of 101_2. Write symbols with several
    spellings in one spelling."""
    for old, new in _SAME.items():
        text = text.replace(old, new)
    for pattern, new in _REWRITTEN:
        text = re.sub(pattern, new, text)
    text = text.strip().removesuffix(".").strip()
    return re.sub(r" +", " ", text)


def parse_form(text: str) -> Form:
    """Return the outermost form of a normalized text, with its members."""
    text = text.strip()
    if numeral(text) or numeral(_without_spaces(text)):  # 15,070 is not a list
        return Form("scalar", text)
    sides = _split(text, "=")
    if len(sides) == 1 and len(found := _split(text, r"\in ")) == 2 and _is_name(found[0]):
        return parse_form(found[1])
    if len(sides) == 2 and (value := _equation(text)[1]) is not None and (inner := parse_form(value)).kind != "scalar":
        return inner
    if len(parts := _split(text, ",")) > 1:
        return Form("list", text, tuple(parse_form(part) for part in parts))
    if len(sides) == 1 and (interval := _interval(text)):
        return interval
    if len(parts := _split(text, r"\cup")) > 1:
        return Form("union", text, tuple(parse_form(part) for part in parts))
    if len(sides) <= 2 and r"\pm" in text:
        return Form("list", text, tuple(parse_form(_with_sign_chosen(text, sign)) for sign in "+-"))
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in matrix[1].split(r"\\") if row.strip()]
        return Form("matrix", text, tuple(Form("row", row, tuple(map(parse_form, row.split("&")))) for row in rows))
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return Form("set", text, tuple(parse_form(part) for part in _split(text[2:-2], ",") if part.strip()))
    if _is_bracketed(text):
        parts = _split(text[1:-1], ",")
        if len(parts) > 1:
            return Form(text[0] + text[-1], text, tuple(map(parse_form, parts)))
        if text[0] + text[-1] in ("()", "{}"):
            return parse_form(text[1:-1])
    return Form("scalar", text)


def _compute(reference: Form) -> None:
    """Compare each scalar of the reference with a number."""
    if reference.kind == "scalar":
        _same_scalar(reference.text, "0")
    for member in reference.members:
        _compute(member)


def _same(reference: Form, answer: Form) -> bool:
    if reference.kind == answer.kind == "scalar":
        return _same_scalar(reference.text, answer.text)
    loose = ("list", "set", "union")
    if reference.kind != answer.kind and not {reference.kind, answer.kind} <= {"list", "set"}:
        return False
    if len(reference.members) != len(answer.members) or len(answer.members) > MAX_MEMBERS:
        return False
    if reference.kind not in loose:
        return all(map(_same, reference.members, answer.members))
    left = list(answer.members)
    for member in reference.members:
        found = next((other for other in left if _same(member, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_scalar(reference: str, answer: str) -> bool:
    if _without_spaces(reference).lstrip("+") == _without_spaces(answer).lstrip("+"):
        return True
    name, value = _equation(reference)
    own, found = _equation(answer)
    if value is not None and found is not None:
        return (not name or not own or name == own) and _same_value(value, found)
    if value is not None and not _VARIABLE.search(value):
        return False  # x - 2 = 1 still has to be solved for x
    return _by_algebra(reference, answer)


def _equation(text: str) -> tuple[str, str | None]:
    """Split `x = value` into name and value. For a text without `=`, return an empty name and the text. For any other
    equation return an empty name and None."""
    sides = [side.strip() for side in _split(text, "=")]
    if len(sides) == 1:
        return "", text
    if len(sides) == 2:
        for name, value in (sides, sides[::-1]):
            if _is_name(name) and _without_spaces(name) not in value:
                return _without_spaces(name), value
    return "", None


def _same_value(reference: str, answer: str) -> bool:
    if word := _as_word(reference):
        if word == _as_word(answer):
            return True
        if r"\text" in reference or len(word) > 3:
            return False
    percent = r"\%" in reference or "%" in reference
    number, found = _number(reference, percent), _number(answer, percent)
    if number is not None:
        return found is not None and same_number(number, found)
    return _by_algebra(reference, answer, rounded=found is not None and found.decimal and found.worked_out)


def _number(text: str, percent: bool) -> Numeral | None:
    """Read a text as a number, ignoring a unit. `percent`: the reference is a percentage, so a % sign is ignored
    too."""
    bare = re.sub(r"\\?%$", "", text).strip()
    signed = bare != text
    if unit := _UNIT.fullmatch(bare):
        bare = unit["number"].strip()
    while bare.startswith("{") and _is_bracketed(bare):
        bare = bare[1:-1]
    found = numeral(bare) or numeral(_without_spaces(bare))
    if found is None or not signed or percent:
        return found
    return Numeral(found.value * Fraction(1, 100), found.decimal, found.worked_out)


def _by_algebra(reference: str, answer: str, *, rounded: bool = False) -> bool:
    """Compare by algebra. Return False if the reference cannot be read. (An answer with the same text was accepted
    before.)"""
    if "%" in answer or ":" in reference + answer:
        return False
    if unit := _UNIT.fullmatch(answer):
        answer = unit["number"]
    if unit := _UNIT.fullmatch(reference):
        reference = unit["number"]
    try:
        return same_expression(reference, answer, rounded=rounded)
    except UnreadableExpression:
        return False


def _interval(text: str) -> Form | None:
    """Read an inequality as an interval: x > 2 as (2, \\infty), 1 < x \\le 2 as (1, 2]."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) == 3 and _is_name(parts[2]):
        parts = [parts[2], {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[parts[1]], parts[0]]
    if len(parts) == 3 and _is_name(parts[0]):
        end, above = parts[2], parts[1] in (">", r"\ge")
        closed = parts[1] in (r"\ge", r"\le")
        kind = ("[)" if closed else "()") if above else ("(]" if closed else "()")
        ends = (end, r"\infty") if above else (r"-\infty", end)
    elif len(parts) == 5 and _is_name(parts[2]) and {parts[1], parts[3]} <= {"<", r"\le"}:
        kind = ("[" if parts[1] == r"\le" else "(") + ("]" if parts[3] == r"\le" else ")")
        ends = (parts[0], parts[4])
    else:
        return None
    return Form(kind, text, tuple(map(parse_form, ends)))


def _as_word(text: str) -> str:
    """Return a word, or a choice such as (A), in one normal spelling; empty for any other text."""
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip().strip("().").strip()
    return " ".join(bare.casefold().split()) if _WORD.fullmatch(bare) else ""


def _with_sign_chosen(text: str, sign: str) -> str:
    """Replace \\pm by the given sign."""
    return re.sub(r"^\+", "", text.replace(r"\pm", sign))


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text.strip())) and not _NO_NAME.search(text)


def _is_bracketed(text: str) -> bool:
    """Return whether the text begins with a bracket that closes only at the end of the text."""
    if len(text) < 2 or text[0] not in _PAIRS or text[-1] not in ")]}":
        return False
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return i == len(text) - 1
    return False


def _balanced(text: str, brackets: str = "{}") -> bool:
    """Return whether every bracket is closed and the nesting is shallow enough to parse.

    The two brackets of a pair may differ, as in the interval [1, 2).
    """
    depth = 0
    for sign in text:
        depth += (sign in brackets[::2]) - (sign in brackets[1::2])
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return depth == 0


def _split(text: str, at: str) -> list[str]:
    """Split at the separators that are outside all brackets."""
    parts, depth, begin, i = [], 0, 0, 0
    while i < len(text):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0 and text.startswith(at, i):
            parts.append(text[begin:i])
            begin = i = i + len(at)
        else:
            i += 1
    return [*parts, text[begin:]]


def _without_spaces(text: str) -> str:
    """Remove spaces, except spaces between digits: 1 5/2 is not 15/2."""
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


def _warm_up() -> None:
    """Compare some expressions once. The first comparisons take longest and would use up the time limit of an answer."""
    for reference, answer in (
        ("x^2+2x+1", "(x+1)^2"),
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{\frac{3}{4}}"),
        (r"\ln 2 + \pi", "1"),
    ):
        is_right(reference, answer)


if __name__ == "__main__":
    _warm_up()
    serve(judge_answer, CPU_SECONDS, MEMORY_BYTES)

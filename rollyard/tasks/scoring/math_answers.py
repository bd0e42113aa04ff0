"""Judges an answer to a `math` task by the rule in docs/math.md. Runs as a checker process.

An answer with the text of the reference is right. Otherwise the form of the reference decides. If the reference is a
number, the answer must be a number with nothing left to compute. If the reference is a tuple, interval, union or
matrix, the answer must have the same form, with right members. If the reference is a list or a set, the answer must be
a list or a set, with right members. If the reference is a word in `\\text` or of more than three letters, the answer
must be this word. Any other reference is compared by algebra.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rollyard.tasks.scoring.answer_forms import Form, equation, named_tuple, parse_form
from rollyard.tasks.scoring.answer_text import (
    balanced,
    bare_text,
    choices,
    is_bracketed,
    normalized,
    without_spaces,
)
from rollyard.tasks.scoring.checker_process import Unprepared, serve
from rollyard.tasks.scoring.numerals import Numeral, numeral, same_number
from rollyard.tasks.scoring.units import split_unit

CPU_SECONDS = 2
MEMORY_BYTES = 2 << 30
MAX_MEMBERS = 100
_ALGEBRA = "rollyard.tasks.scoring.latex_algebra"
"""Its import takes most of a CPU second, and a reference that is a number does not need it."""
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_WORD = re.compile(r"[^\W\d_][^\W\d_ .'-]*(?:[ .'-]+[^\W\d_]+)*\.?")
_IMAGINARY = {letter: re.compile(rf"(?<![\\a-zA-Z]){letter}(?![a-zA-Z])") for letter in "ij"}
_BASE = re.compile(r"(?P<digits>[\dA-F]+)_(?P<base>\d+)")


_DEGREES, _RADIANS = re.compile(r"\\circ|°|degree"), re.compile(r"(?<![a-zA-Z])rad(?:ian)?s?(?![a-zA-Z])")


class BadReference(Exception):
    pass


def judge_answer(reference: bytes, answer: bytes) -> Mapping[str, Any]:
    """Return {"right": 1.0 or 0.0, "notes": reasons}. Return {"bad_reference": 1.0} if the normalized reference is empty, or
    if its braces are unbalanced, or nested too deeply. An empty answer is wrong; for it every member of the reference is
    computed, so that the caller sees a reference that exceeds the limits."""
    wanted, given = reference.decode(), answer.decode()
    try:
        right = is_right(wanted, given)
        return {
            "right": float(right),
            "notes": [f"the answer {_cut(given)} is right" if right else why_wrong(wanted, given)],
        }
    except BadReference:
        return {"bad_reference": 1.0}
    except (ValueError, TypeError, ArithmeticError, RuntimeError, LookupError, AttributeError):
        return {"right": 0.0, "notes": [f"the answer {_cut(given)} cannot be compared with {_cut(wanted)}"]}


def is_right(reference: str, answer: str) -> bool:
    """Return whether the answer is right. Raises BadReference."""
    for one, other in ((reference, answer), (answer, reference)):
        if _DEGREES.search(one) and _RADIANS.search(other):
            return False
    reference, answer = normalized(reference), normalized(answer)
    if not reference or not balanced(reference):
        raise BadReference(reference)
    if without_spaces(bare_text(reference)) == without_spaces(bare_text(answer)):
        return True
    if not answer:
        _compute(parse_form(reference))
        return False
    if (wanted := choices(reference)) and (chosen := choices(answer)):
        return wanted == chosen
    return balanced(answer, "{}()[]") and _same(parse_form(reference), parse_form(answer))


def why_wrong(reference: str, answer: str) -> str:
    """Say why a wrong answer is wrong, without any algebra."""
    wanted, given = normalized(reference), normalized(answer)
    if not given:
        return "the answer is empty"
    if not balanced(given, "{}()[]"):
        return f"the brackets of the answer {_cut(answer)} do not match, or are nested too deeply"
    forms = parse_form(wanted), parse_form(given)
    if forms[0].kind != forms[1].kind:
        return f"the answer {_cut(answer)} is {forms[1].words}, but {_cut(reference)} is {forms[0].words}"
    if forms[0].kind == "scalar":
        (_, unit), (_, other) = split_unit(wanted), split_unit(given)
        if unit is not None and other is not None and unit.contradicts(other):
            return f"the answer {_cut(answer)} has another unit than {_cut(reference)}"
        number, found = (_number(value, False) if (value := equation(text)[1]) else None for text in (wanted, given))
        if number is not None and found is None:
            return f"the answer {_cut(answer)} is not a calculated number, but {_cut(reference)} is"
        if number is not None and found is not None and number.value == found.value:
            return f"the answer {_cut(answer)} is not fully calculated"
    return f"the answer {_cut(answer)} is not equal to {_cut(reference)}"


def _compute(reference: Form) -> None:
    """Compare each scalar of the reference with a number."""
    if reference.kind == "scalar":
        _same_scalar(reference.text, "0")
    for member in reference.members:
        _compute(member)


def _same(reference: Form, answer: Form) -> bool:
    if reference.kind == answer.kind == "scalar":
        return _same_scalar(reference.text, answer.text)
    if reference.kind == "()" and (pair := named_tuple(answer)) is not None:
        answer = pair
    if answer.kind == "()" and (pair := named_tuple(reference)) is not None:
        reference = pair
    kinds = {reference.kind, answer.kind}
    as_union = "union" in kinds and (reference.of_intervals or answer.of_intervals)
    if len(kinds) > 1 and not (kinds <= {"list", "set"} or as_union):
        return False
    if len(reference.members) != len(answer.members) or len(answer.members) > MAX_MEMBERS:
        return False
    if reference.kind not in ("list", "set", "union"):
        return all(map(_same, reference.members, answer.members))
    left = list(answer.members)
    for member in reference.members:
        found = next((other for other in left if _same(member, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_scalar(reference: str, answer: str) -> bool:
    if without_spaces(reference).lstrip("+") == without_spaces(answer).lstrip("+"):
        return True
    name, value = equation(reference)
    own, found = equation(answer)
    if value is not None and found is not None:
        return _same_name(name, own) and _same_value(value, found)
    if value is not None and not _VARIABLE.search(value):
        return False  # x - 2 = 1 still has to be solved for x
    return _by_algebra(reference, answer)


def _same_name(reference: str, answer: str) -> bool:
    """Return whether two names are the same, or one is missing. `y` is the name of every function."""
    functions = sum(bool(re.fullmatch(r"[a-zA-Z]\([a-z]\)", name)) for name in (reference, answer))
    return not reference or not answer or reference == answer or ("y" in (reference, answer) and functions == 1)


def _same_value(reference: str, answer: str) -> bool:
    if word := _as_word(reference):
        if word == _as_word(answer):
            return True
        if r"\text" in reference or len(word) > 3:
            return False
    (reference, unit), (answer, other) = split_unit(reference), split_unit(answer)
    if unit is not None and other is not None and unit.contradicts(other):
        return False
    if (bases := _same_base(reference, answer)) is not None:
        return bases
    percent = reference.endswith("%")
    number, found = _number(reference, percent), _number(answer, percent)
    if number is not None:
        return found is not None and same_number(number, found)
    return _by_algebra(reference, answer, rounded=found is not None and found.decimal and found.worked_out)


def _same_base(reference: str, answer: str) -> bool | None:
    """Compare numbers of which one has a base, as 1011_2. None if neither has one. An answer without a base has the base
    of the reference, a reference without a base has the base 10."""
    wanted, given = (_BASE.fullmatch(without_spaces(text)) for text in (reference, answer))
    if wanted is None and given is None:
        return None
    if given is None:
        return wanted is not None and wanted["digits"] == without_spaces(answer)
    if wanted is None:
        return given["base"] == "10" and given["digits"] == without_spaces(reference)
    return wanted.groups() == given.groups()


def _number(text: str, percent: bool) -> Numeral | None:
    """Read a text as a number, ignoring a unit. `percent`: the reference is a percentage, so a % sign is ignored
    too."""
    text = split_unit(text)[0]
    bare = re.sub(r"\\?%$", "", text).strip()
    signed = bare != text.strip()
    while bare.startswith("{") and is_bracketed(bare):
        bare = bare[1:-1]
    found = numeral(bare) or numeral(without_spaces(bare))
    if found is None or not signed or percent:
        return found
    return Numeral(found.value * Fraction(1, 100), found.decimal, found.worked_out)


def _by_algebra(reference: str, answer: str, *, rounded: bool = False) -> bool:
    """Compare by algebra. Return False if the reference cannot be read. (An answer with the same text was accepted
    before.) Raises Unprepared in a process that has not imported the algebra system."""
    if "%" in answer or ":" in reference + answer:
        return False
    reference, answer = (text.replace("{,}", "") for text in (reference, answer))
    if _IMAGINARY["i"].search(reference) and not _IMAGINARY["i"].search(answer):
        answer = _IMAGINARY["j"].sub("i", answer)
    if _ALGEBRA not in sys.modules:
        raise Unprepared
    from rollyard.tasks.scoring.latex_algebra import UnreadableExpression, same_expression

    try:
        return same_expression(reference, answer, rounded=rounded)
    except UnreadableExpression:
        return False


def _as_word(text: str) -> str:
    """Return a word, or a choice such as (A), in one normal spelling; empty for any other text."""
    bare = re.sub(r"(?i)^(?:an?|the)\s+", "", bare_text(text).strip("().").strip())
    return " ".join(bare.casefold().split()) if _WORD.fullmatch(bare) else ""


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def load_algebra() -> None:
    """Import the algebra system, and compare some expressions once. The first comparisons take longest and would use up the
    time limit of an answer."""
    importlib.import_module(_ALGEBRA)
    for reference, answer in (
        ("x^2+2x+1", "(x+1)^2"),
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{\frac{3}{4}}"),
        (r"\ln 2 + \pi", "1"),
    ):
        is_right(reference, answer)


if __name__ == "__main__":
    serve(judge_answer, CPU_SECONDS, MEMORY_BYTES, load_algebra)

"""Reads an answer such as `9.81\\,\\mathrm{m/s^2}`, `F = 3.0 \\times 10^8 N` or `1,5 kg` as one number with a unit. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rollyard.kinds.values.physical_unit import PhysicalUnit, read_unit
from rollyard.tasks.scoring.numerals import numeral
from rollyard.tasks.scoring.units import is_no_noun

_SPELLED: tuple[tuple[str, str], ...] = (
    (r"^\s*\*\*|\*\*\s*$", " "),
    (r"\*\*", "^"),
    (r"[−–‐]", "-"),
    (r"\\(?:SI|qty)\{([^{}]*)\}\{([^{}]*)\}", r"\1 \2"),
    (r"(?<=\d)(?:\\,|\{,\}|\\thinspace|[\u2009\u202f'’])(?=\d{3}(?!\d))", ","),
    (r"\\[()\[\]]|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])", " "),
    (r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|[~\s\u2009\u202f]", " "),
    (r"\\(?:mathrm|mathbf|mathit|mathsf|text|textbf|textit|textrm|textsf|mbox|operatorname|unit|si|num)\s*"
     r"\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 "),
    (r"\\(?:rm|bf)(?![a-zA-Z])", " "),
    (r"\\(?:times|cdot|ast)(?![a-zA-Z])|[×·⋅∙]|(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),
    (r"\\(?:approx|simeq|sim|cong|equiv|doteq)(?![a-zA-Z])|[≈≃≅]", "="),
    (r"(?:\\mu(?![a-zA-Z])|\\micro(?![a-zA-Z])|[µμ])\s*", "µ"),
    (r"\\(?:Omega|ohm)(?![a-zA-Z])", "Ω"),
    (r"\\(?:AA|angstrom)(?![a-zA-Z])|\\mathring\{A\}", "Å"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\(?:degree|circ)(?![a-zA-Z])|º", "°"),
    (r"\\%", "%"),
    (r"\\pm(?![a-zA-Z])|\+/-", "±"),
    (r"\\pi(?![a-zA-Z])", "π"),
    (r"\\sqrt\s*\{(\d+)\}", r"√\1"),
    (r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\1/\2"),
    (r"\\[dtc]?frac\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", r"(\1)/(\2)"),
    (r"\(\s*(\d*\s*π|\d*\s*√\d+|\d+)\s*\)\s*/\s*\(\s*(\d+)\s*\)", r"\1/\2"),
    (r"\s*\^\s*(?:\{\s*([+-]?)\s*(\d+)\s*\}|\(\s*([+-]?)\s*(\d+)\s*\)|([+-]?)(\d+))", r"^{\1\3\5\2\4\6}"),
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_ABOUT = re.compile(r"(?i)^\s*(?:about|approximately|approx\.?|around|roughly|ca\.?|exactly|nearly|~|=)\s*")
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:"
    rf"(?P<mantissa>{_DECIMAL})\s*\*\s*10\^\{{(?P<power>[+-]?\d+)\}}"
    rf"|(?P<float>{_DECIMAL})[eE](?P<exponent>[+-]?\d+)"
    rf"|10\^\{{(?P<ten>[+-]?\d+)\}}"
    rf"|(?P<top>\d+)\s*/\s*(?P<bottom>\d+)(?![\d.])"
    rf"|(?P<plain>{_DECIMAL})"
    rf")"
)
_COMMA = re.compile(r"(?<![\d,.])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?![\d,])")
_FACTOR = re.compile(r"\s*\*?\s*(?:(?P<pi>π)|√\s*\(?(?P<root>\d{1,30})\)?)(?:\s*/\s*(?P<bottom>0*[1-9]\d*))?")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "lakh": 5, "crore": 7}
_POWER_OF_TEN = r"\s*\*\s*10\^\{[+-]?\d{1,3}\}"
_UNCERTAINTY = re.compile(
    r"\s*±\s*(?P<size>\d+\.?\d*|\.\d+)(?:\s*\*\s*10\^\{(?P<power>[+-]?\d{1,3})\})?(?P<percent>%)?"
)
_IN_BRACKETS = re.compile(rf"^\(\s*([^()±]*?)\s*±\s*([^()±]*?)\s*\)({_POWER_OF_TEN})?")
_SHORT_SCALES = re.compile(r"[KMBGT]\b")
"""Letters that mean thousands and more where no unit is asked for, and that are symbols of units as well."""
_OF = re.compile(r"(?<=\S) of (?:the )?[^\W\d_]\w*(?: [^\W\d_]+)?$")
_NOUNS = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*[.,]?")
_NAME = re.compile(r"(?:[^\W\d]|[\\_^{}()|'’° ]|(?<=[_^{\w])\d|\*)*")
MAX_EXPONENT = 400


@dataclass(frozen=True, slots=True)
class Quantity:
    value: Fraction
    unit: PhysicalUnit | None = None
    """None: the number has no unit, or a noun in its place."""
    implied: bool = False
    """Whether the unit is not written. A multiple of π is in radians where an angle is asked for."""
    noun: str = ""
    """Word behind the number that is no known unit, such as `apples`."""
    uncertainty: Fraction = Fraction(0)
    """Difference that the answer itself allows for, in its unit: 0.1 of `4.2 ± 0.1`."""
    short_scale: bool = False
    """Whether the unit's letter stands directly behind the number, as in `12K` and `12M`."""


def read_quantities(text: str) -> list[Quantity]:
    """Return the quantity of an answer. In a chain such as `m = 5 kg = 5000 g` return each. The list is empty if the answer
    has none, or is more than one answer."""
    sides = [side.strip() for side in plain_spelling(text).split("=")]
    found = [read_quantity(side) for side in sides]
    last = found[-1]
    for side, quantity in zip(sides[:-1], found, strict=False):
        if quantity is None and (re.search(r"(?i)\b(?:or|and|either|not)\b|[,;]", side) or not _left_side(side, sides)):
            return []
    return [quantity for quantity in found if quantity is not None] if last is not None else []


def _left_side(side: str, sides: list[str]) -> bool:
    """Return whether a side without a quantity may stand before the value: a name first, a calculation after it."""
    return bool(_NAME.fullmatch(side)) or side is not sides[0]


def read_quantity(plain: str) -> Quantity | None:
    """Read a text in plain spelling as one number, with a unit or without."""
    text = _ABOUT.sub("", plain.strip().removesuffix(".")).strip()
    while text.startswith(("(", "{")) and text.endswith((")", "}")) and _whole(text):
        text = text[1:-1].strip()
    currency = re.match(r"[$€£¥₹]\s*", text)
    text = text[currency.end() :] if currency else text
    text = _IN_BRACKETS.sub(r"\1\3 ± \2\3", text)  # (5.0 ± 0.1) m
    if (number := _number(text)) is None:
        return None
    value, rest = number
    uncertainty = Fraction(0)
    if found := _UNCERTAINTY.match(rest):
        uncertainty = Fraction(found["size"]) * Fraction(10) ** int(found["power"] or 0)
        uncertainty *= abs(value) / 100 if found["percent"] else 1
        rest = rest[found.end() :]
    short_scale = _SHORT_SCALES.match(rest) is not None
    rest = rest.replace("{", " ").replace("}", " ") if not re.search(r"\^\{", rest) else _without_braces(rest)
    rest = re.sub(r"\s+", " ", rest).strip().removeprefix("*").strip()
    rest = _OF.sub("", rest)
    if currency:
        rest = f"{currency[0].strip()} {rest}".strip()
    first, _, after = rest.partition(" ")
    if first.casefold().removesuffix("s") in _SCALES:
        scale = 10 ** _SCALES[first.casefold().removesuffix("s")]
        value, uncertainty, rest = value * scale, uncertainty * scale, after
    if not rest and "π" in text:
        return Quantity(value, read_unit("rad"), implied=True, uncertainty=uncertainty)
    quantity = _with_unit(value, rest)
    return quantity and replace(quantity, uncertainty=uncertainty, short_scale=short_scale)


def _with_unit(value: Fraction, rest: str) -> Quantity | None:
    if not rest:
        return Quantity(value)
    if (unit := read_unit(rest)) is not None:
        return Quantity(value, unit)
    words = rest.split(" ")
    for count in range(len(words) - 1, -1, -1):
        nouns = words[count:]
        if not all(_NOUNS.fullmatch(word) and not is_no_noun(word) for word in nouns):
            return None
        unit = read_unit(" ".join(words[:count]).rstrip(",")) if count else None
        if unit is not None:
            return Quantity(value, unit)
    return Quantity(value, noun=rest) if len(words[0].strip(".,")) >= 3 else None


def _number(text: str) -> tuple[Fraction, str] | None:
    """Return the number at the begin of a text, and the rest."""
    text = re.sub(
        r"^([+-]?\d{1,3})((?:\.\d{3}){2,})(?![\d.])", lambda found: found[1] + found[2].replace(".", ""), text
    )
    text = _COMMA.sub(_decimal_comma, text, count=1)
    value: Fraction | None
    if bare := re.match(r"([+-]?)\s*(?=π|√)", text):
        value, rest = Fraction(-1 if bare[1] == "-" else 1), text[bare.end() :]
    else:
        found = _NUMBER.match(text)
        if found is None or (value := _value(found)) is None:
            return None
        rest = text[found.end() :]
        if re.match(r"[\d.,]*\d|\s+(?!1/)\d|\s*[-+^*/]\s*\(?\d|\s*[-+]", rest):
            return None
    factor = _FACTOR.match(rest)
    if factor is None:
        return value, rest
    size = math.pi if factor["pi"] else math.sqrt(int(factor["root"]))
    return value * Fraction(size) / int(factor["bottom"] or 1), rest[factor.end() :]


def _value(found: re.Match[str]) -> Fraction | None:
    power = found["power"] or found["exponent"] or found["ten"] or "0"
    if len(power) > 4 or abs(int(power)) > MAX_EXPONENT:
        return None
    if found["top"]:
        fraction = numeral(f"{found['top']}/{found['bottom']}")
        value = fraction.value if fraction is not None and fraction.worked_out else None
    else:
        digits = found["mantissa"] or found["float"] or found["plain"] or "1"
        value = Fraction(digits.replace(",", "").replace(" ", "")) * Fraction(10) ** int(power)
    return value if value is None or found["sign"] != "-" else -value


def _decimal_comma(found: re.Match[str]) -> str:
    """Write 3,14 and 1.234,5 as 3.14 and 1234.5. 1,234 has a separator of thousands."""
    whole, digits = found[1], found[2]
    if "." not in whole and len(digits) == 3 and len(whole) <= 3 and not whole.startswith("0"):
        return found[0]
    return f"{whole.replace('.', '')}.{digits}"


def plain_spelling(text: str) -> str:
    """Return the text without LaTeX's layout, and each symbol in one spelling."""
    text = text.replace(r"\$", "$")
    if text.count("$") > 1:
        text = text.replace("$", " ")
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", _superscript, text)
    for pattern, written in _SPELLED:
        text = re.sub(pattern, written, text)
    return re.sub(r"\s+", " ", text).strip()


def _superscript(found: re.Match[str]) -> str:
    return f"^{{{found[0].translate(_SUPERSCRIPTS)}}}"


def _whole(text: str) -> bool:
    """Return whether the first bracket closes at the end of the text."""
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign in "({") - (sign in ")}")
        if depth == 0:
            return i == len(text) - 1
    return False


def _without_braces(text: str) -> str:
    """Remove braces that hold no exponent."""
    kept = re.sub(r"\^\{([+-]?\d+)\}", "^\x00\\1\x01", text)
    return kept.replace("{", " ").replace("}", " ").replace("\x00", "{").replace("\x01", "}")

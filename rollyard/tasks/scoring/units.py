"""Splits a quantity such as `5\\text{ cm}^2`, `45 N` or `€20` into number and unit. Pure.

A unit is an expression of known symbols (`kg m/s^2`) or names (`metres per second`), or a noun such as `apples`. A word
that changes the number (`dozen`), joins numbers (`or`) or stands for a number (`pi`, `eight`) is none, and neither is a
product of variables such as `xy`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

MAX_TAIL = 60
"""Longest unit in characters."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WITH_PREFIX = _words("m g s N J W V A K Pa Hz L l mol C F T Ω cal eV bit B")
_SYMBOLS = {
    *(prefix + unit for prefix in ("", *"kMGTmcdnpµh") for unit in _WITH_PREFIX),
    *_words("min h ft in yd mi lb oz mph rpm ha rad sr dB AU ly atm bar mmHg kWh Wh"),
}
_LETTERS = frozenset("mgshNJWVAKCFTLlΩ")
"""Symbols of one letter that may stand bare, behind a space. Any other letter is a variable."""
_AT_THE_NUMBER = _words("cm mm km kg ft lb mph ml min Hz kHz MHz GHz kW kJ kN")
"""Symbols that may stand bare and directly behind the number. `2mg` is a product of variables."""
_NAMES = {
    "meter": "m", "metre": "m", "gram": "g", "second": "s", "sec": "s", "minute": "min", "mins": "min", "hour": "h", "hr": "h",
    "day": "day", "week": "week", "month": "month", "year": "year", "yr": "year",
    "newton": "N", "joule": "J", "watt": "W", "volt": "V", "ampere": "A", "amp": "A", "kelvin": "K", "pascal": "Pa",
    "hertz": "Hz", "liter": "l", "litre": "l", "L": "l", "mole": "mol", "coulomb": "C", "farad": "F", "tesla": "T", "ohm": "Ω",
    "calorie": "cal", "foot": "ft", "feet": "ft", "inch": "in", "inche": "in", "yard": "yd", "mile": "mi", "pound": "lb",
    "lbs": "lb", "ounce": "oz", "radian": "rad", "dollar": "$", "USD": "$", "euro": "€", "EUR": "€", "GBP": "£", "cent": "¢",
    "rupee": "₹", "INR": "₹", "yen": "¥", "JPY": "¥",
}  # fmt: skip
_LONG_PREFIXES = {
    "kilo": "k", "mega": "M", "giga": "G", "milli": "m", "centi": "c", "deci": "d", "nano": "n", "micro": "µ",
}  # fmt: skip
_NOUNS = _words("day way man men cat dog car egg cup bag box pen old boy ton mph pts yrs hrs bit fps set row sq")
"""Nouns of at most three letters. A longer bare word is taken for a noun."""
NO_NOUNS = _words(
    """
    pi or and of not no nor to than is are be as if by times plus minus over about approximately around nearly almost
    hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens half percent
    one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety
    zero sin cos tan cot sec csc ln log exp sqrt arcsin arccos arctan sinh cosh tanh min max gcd lcm mod infinity
    alpha beta gamma delta epsilon theta lambda sigma omega phi rho tau base squared cubed degrees unknown
    between either both only instead wrong right false true less more fewer greater equals for when where with without
    otherwise except unless modulo maybe perhaps probably likely approx possibly at least most from up until remainder
    negative positive
    thirteen fourteen fifteen sixteen seventeen eighteen nineteen twice thrice
    quadrillion quadrillions quintillion quintillions sextillion septillion octillion nonillion decillion zillion zillions
    lakh lakhs lac lacs crore crores gross score scores googol googols googolplex myriad myriads
    halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths
    twelfth twelfths twentieth twentieths hundredth hundredths thousandth thousandths millionth millionths billionth billionths
    factorial factorials reciprocal reciprocals inverse inverted halved doubled tripled quadrupled doubles triples
    alternatively alternately alternative also but however rather else though although neither could might would should
    """
)
"""Words that change the number, join numbers, stand for a number, or say that the answer is not a plain quantity."""
_CURRENCIES = {r"\$": "$", "€": "€", "£": "£", "¥": "¥", "₹": "₹", r"\euro": "€", r"\pounds": "£", r"\yen": "¥"}
_MARKS = {**_CURRENCIES, "''": "in", "'": "ft"}
_FIRST = re.compile(r"(?P<currency>" + "|".join(map(re.escape, _CURRENCIES)) + r")\s*(?P<number>.*)", re.DOTALL)
_LAST = re.compile(r"(?P<number>.*[\d.})])\s*(?P<currency>" + "|".join(map(re.escape, _MARKS)) + ")", re.DOTALL)
_NUMERIC = re.compile(
    r"(?:\\(?:frac|sqrt|pi|times|cdot|ln|log|text\{\})(?![a-zA-Z])|\\[,%]|[\d\s.,{}()\[\]^+*/!-]|(?<=\d)e[+-]?\d|π)+"
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_POWER = re.compile(r"(?P<symbol>[^\d\W]+|Ω|\$|€)(?:\^(?:\{(?P<a>[+-]?\d)\}|(?P<b>-?\d)))?")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit. Two units with known symbols are the same if their powers are the same."""

    text: str
    powers: tuple[tuple[str, int], ...] = ()
    """Known symbols with their exponents; empty for a noun."""

    def contradicts(self, other: Unit) -> bool:
        return bool(self.powers and other.powers and self.powers != other.powers)


def is_no_noun(word: str) -> bool:
    """Return whether a word behind a number, such as `million` or `forty-two`, is no noun that is counted."""
    return all(part in NO_NOUNS for part in word.casefold().strip(".,").split("-"))


def split_unit(text: str) -> tuple[str, Unit | None]:
    """Return the number, and the unit after or, for a currency, before it. Without a unit return the text and None."""
    if found := _FIRST.fullmatch(text):
        symbol = _CURRENCIES[found["currency"]]
        inner, unit = split_unit(found["number"])
        return inner, unit if unit is not None and unit.powers else Unit(symbol, ((symbol, 1),))
    if found := _LAST.fullmatch(text):
        symbol = _MARKS[found["currency"]]
        return found["number"].strip(), Unit(symbol, ((symbol, 1),))
    text = text.removesuffix(".")
    for start in range(max(1, len(text) - MAX_TAIL), len(text)):
        number, tail = text[:start].rstrip(), text[start:]
        if tail[0] in " )}" or not re.search(r"(?:[\d.})]|\\pi)$", number) or not _begins(text, start):
            continue
        if (unit := _unit(tail, number, bare=text[start - 1] != " ")) is not None:
            return number, unit
    return text, None


def _begins(text: str, start: int) -> bool:
    """Return whether a word, or `\\text`, begins here."""
    if text.startswith((r"\text{", r"\mu", r"\Omega", r"\cdot"), start):
        return not text.startswith(r"\cdot", start)
    return text[start].isalpha() and not re.search(r"[a-zA-Z\\]$", text[:start])


def _unit(tail: str, number: str, *, bare: bool) -> Unit | None:
    """Read a text as a unit; None if it is none. `bare`: it stands directly behind the number."""
    in_text = tail.startswith(r"\text{")
    plain = _TEXT.sub(lambda found: f" {found[1].strip()}", tail)
    plain = re.sub(r"\\mu(?![a-zA-Z])\s*|μ", "µ", plain)
    plain = re.sub(r"\\Omega(?![a-zA-Z])", "Ω", plain).strip().removesuffix(".").strip()
    if "\\" in plain.replace(r"\cdot", "") or not (in_text or _NUMERIC.fullmatch(number)):
        return None
    if not in_text and len(plain) == 1 and plain not in _LETTERS:
        return None
    if bare and not in_text and len(plain) < 4 and plain not in _AT_THE_NUMBER:
        return None
    if powers := _powers(plain):
        return Unit(plain, powers)
    words = plain.split()
    shortest = 3 if in_text else 4
    nouns = all(re.fullmatch(r"[^\W\d_]+(?:['.-][^\W\d_]+)*[.,]?(?:\^\{?[23]\}?)?", word) for word in words)
    if not words or not nouns or any(is_no_noun(word) for word in words):
        return None
    first = re.sub(r"\^.*", "", words[0].casefold().strip(".,"))
    return Unit(plain) if len(first) >= shortest or first in _NOUNS else None


def _powers(text: str) -> tuple[tuple[str, int], ...]:
    """Return the symbols of a unit with their exponents, in order; empty if a part is unknown."""
    text = re.sub(r"\bper\b", "/", text)
    text = re.sub(r"\b(?:square|sq\.?)\s+([^\W\d_]+)", r"\1^2", text)
    text = re.sub(r"\bcubic\s+([^\W\d_]+)", r"\1^3", text)
    text = re.sub(r"([^\W\d_]+)\s+squared\b", r"\1^2", text)
    text = re.sub(r"([^\W\d_]+)\s+cubed\b", r"\1^3", text)
    powers: Counter[str] = Counter()
    for index, side in enumerate(text.split("/")):
        parts = re.sub(r"\\cdot|\*|·|[()]", " ", side).split()
        if not parts and not (index == 0 and "/" in text):
            return ()
        for part in parts:
            found = _POWER.fullmatch(part)
            symbol = _symbol(found["symbol"]) if found else None
            if found is None or symbol is None:
                return ()
            exponent = int(found["a"] or found["b"] or 1)
            powers[symbol] += -exponent if index else exponent
    return tuple(sorted((symbol, power) for symbol, power in powers.items() if power))


def _symbol(word: str) -> str | None:
    """Return the symbol of a unit's name or symbol; None for any other word."""
    for name in (word, word.removesuffix("s")):
        if name in _NAMES:
            return _NAMES[name]
    if word in _SYMBOLS:
        return word.replace("L", "l") if word.endswith("L") else word
    low = word.casefold()
    for name in (low, low.removesuffix("s")):
        if name in _NAMES:
            return _NAMES[name]
        for prefix, letter in _LONG_PREFIXES.items():
            if name.startswith(prefix) and name.removeprefix(prefix) in _NAMES:
                return letter + _NAMES[name.removeprefix(prefix)]
    return None

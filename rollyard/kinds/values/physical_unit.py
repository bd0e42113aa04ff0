"""Units of measurement: `kg m/s^2`, `µmol/L`, `metres per second`, `°C`, with their factors to the base units. Pure.

Factors are those of the SI brochure (2019), CODATA 2022 and, for units of trade, their definitions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

MAX_UNIT_CHARS = 80
MAX_POWER = 12


class Symbol(NamedTuple):
    factor: Fraction
    """Size in base units."""
    base: str
    """Base units with their exponents, such as `kg m2 s-2`."""
    prefixes: bool = False
    """Whether a prefix such as k may stand before it."""
    offset: Fraction = Fraction(0)
    """Base units at the unit's zero."""


def _si(base: str, factor: float | str = 1) -> Symbol:
    return Symbol(Fraction(factor), base, True)


def _is(factor: Fraction | float | str, base: str = "", offset: str = "0") -> Symbol:
    return Symbol(Fraction(factor), base, False, Fraction(offset))


_PI = Fraction(math.pi)
_SYMBOLS: Mapping[str, Symbol] = {
    "m": _si("m"), "g": _si("kg", "0.001"), "s": _si("s"), "A": _si("A"), "K": _si("K"), "mol": _si("mol"), "cd": _si("cd"),
    "N": _si("kg m s-2"), "J": _si("kg m2 s-2"), "W": _si("kg m2 s-3"), "Pa": _si("kg m-1 s-2"), "Hz": _si("cycle s-1"),
    "V": _si("kg m2 s-3 A-1"), "C": _si("s A"), "F": _si("kg-1 m-2 s4 A2"), "Ω": _si("kg m2 s-3 A-2"),
    "S": _si("kg-1 m-2 s3 A2"), "T": _si("kg s-2 A-1"), "Wb": _si("kg m2 s-2 A-1"), "H": _si("kg m2 s-2 A-2"),
    "lm": _si("cd"), "lx": _si("cd m-2"), "Bq": _si("decay s-1"), "Gy": _si("gray m2 s-2"), "Sv": _si("sievert m2 s-2"),
    "kat": _si("mol s-1"), "L": _si("m3", "0.001"), "l": _si("m3", "0.001"), "ℓ": _si("m3", "0.001"),
    "M": _si("mol m-3", 1000), "eV": _si("kg m2 s-2", "1.602176634e-19"), "cal": _si("kg m2 s-2", "4.184"),
    "Wh": _si("kg m2 s-2", 3600), "Ah": _si("s A", 3600), "bar": _si("kg m-1 s-2", 100000), "t": _si("kg", 1000),
    "Da": _si("kg", "1.66053906892e-27"), "G": _si("kg s-2 A-1", "1e-4"), "Ci": _si("decay s-1", "3.7e10"),
    "P": _si("kg m-1 s-1", "0.1"), "St": _si("m2 s-1", "1e-4"), "pc": _si("m", "3.0856775814913673e16"),
    "ly": _si("m", "9460730472580800"), "yr": _si("s", 31557600), "bit": _si("bit"), "B": _si("bit", 8),
    "bps": _si("bit s-1"), "b": _is("1e-28", "m2"), "rad": _si("rad"), "sr": _is(1, "rad2"), "cycle": _is(1, "cycle"),
    "°": _is(_PI / 180, "rad"), "arcmin": _is(_PI / 10800, "rad"), "arcsec": _is(_PI / 648000, "rad"),
    "rpm": _is(Fraction(1, 60), "cycle s-1"), "min": _is(60, "s"), "h": _is(3600, "s"), "d": _is(86400, "s"),
    "week": _is(604800, "s"), "month": _is(2629800, "s"), "AU": _is(149597870700, "m"), "Å": _is("1e-10", "m"),
    "u": _is("1.66053906892e-27", "kg"), "in": _is("0.0254", "m"), "ft": _is("0.3048", "m"), "yd": _is("0.9144", "m"),
    "mi": _is("1609.344", "m"), "nmi": _is(1852, "m"), "mph": _is("0.44704", "m s-1"),
    "kn": _is(Fraction(1852, 3600), "m s-1"), "kph": _is(Fraction(1000, 3600), "m s-1"), "lb": _is("0.45359237", "kg"),
    "oz": _is("0.028349523125", "kg"), "lbf": _is("4.4482216152605", "kg m s-2"),
    "psi": _is("6894.757293168361", "kg m-1 s-2"), "dyn": _is("1e-5", "kg m s-2"), "erg": _is("1e-7", "kg m2 s-2"),
    "BTU": _is("1055.05585262", "kg m2 s-2"), "hp": _is("745.69987158227", "kg m2 s-3"), "atm": _is(101325, "kg m-1 s-2"),
    "Torr": _is(Fraction(101325, 760), "kg m-1 s-2"), "mmHg": _is("133.322387415", "kg m-1 s-2"),
    "gal": _is("0.003785411784", "m3"), "cc": _is("1e-6", "m3"), "mcg": _is("1e-9", "kg"), "ha": _is(10000, "m2"),
    "acre": _is("4046.8564224", "m2"), "D": _is("3.33564095e-30", "s A m"), "c": _is(299792458, "m s-1"),
    "Hartree": _is("4.3597447222060e-18", "kg m2 s-2"), "dB": _is(1, "dB"), "%": _is("0.01"), "‰": _is("0.001"),
    "ppm": _is("1e-6"), "ppb": _is("1e-9"), "°C": _is(1, "K", "273.15"), "°F": _is(Fraction(5, 9), "K", "459.67"),
    "$": _is(1, "$"), "€": _is(1, "€"), "£": _is(1, "£"), "¥": _is(1, "¥"), "₹": _is(1, "₹"), "¢": _is("0.01", "$"),
}  # fmt: skip
_PREFIXES = {
    "Q": 30, "R": 27, "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1, "d": -1, "c": -2,
    "m": -3, "µ": -6, "u": -6, "n": -9, "p": -12, "f": -15, "a": -18, "z": -21, "y": -24,
}  # fmt: skip
_LONG_PREFIXES = {
    "tera": "T", "giga": "G", "mega": "M", "kilo": "k", "hecto": "h", "deci": "d", "centi": "c", "milli": "m", "micro": "µ",
    "nano": "n", "pico": "p", "femto": "f", "atto": "a", "exa": "E", "peta": "P",
}  # fmt: skip
_NAMES = {
    "meter": "m", "metre": "m", "gram": "g", "gramme": "g", "second": "s", "sec": "s", "ampere": "A", "amp": "A", "kelvin": "K",
    "mole": "mol", "candela": "cd", "newton": "N", "joule": "J", "watt": "W", "pascal": "Pa", "hertz": "Hz", "volt": "V",
    "coulomb": "C", "farad": "F", "ohm": "Ω", "siemens": "S", "siemen": "S", "tesla": "T", "weber": "Wb", "henry": "H",
    "henries": "H", "lumen": "lm", "lux": "lx", "becquerel": "Bq", "gray": "Gy", "sievert": "Sv", "liter": "L", "litre": "L",
    "molar": "M", "electronvolt": "eV", "electron-volt": "eV", "calorie": "cal", "tonne": "t", "dalton": "Da", "amu": "u",
    "gauss": "G", "curie": "Ci", "poise": "P", "parsec": "pc", "lightyear": "ly", "light-year": "ly", "y": "yr", "year": "yr",
    "byte": "B", "radian": "rad", "rads": "rad", "steradian": "sr", "degree": "°", "deg": "°", "arcminute": "arcmin",
    "arcsecond": "arcsec", "revolution": "cycle", "rev": "cycle", "turn": "cycle", "minute": "min", "mins": "min",
    "hour": "h", "hr": "h", "day": "d", "angstrom": "Å", "ångström": "Å", "inch": "in", "inche": "in", "foot": "ft",
    "feet": "ft", "yard": "yd", "mile": "mi", "knot": "kn", "pound": "lb", "lbs": "lb", "ounce": "oz", "dyne": "dyn",
    "horsepower": "hp", "atmosphere": "atm", "torr": "Torr", "gallon": "gal", "hectare": "ha", "debye": "D", "percent": "%",
    "celsius": "°C", "°celsius": "°C", "fahrenheit": "°F", "°fahrenheit": "°F", "degC": "°C", "degF": "°F", "decibel": "dB",
    "kmh": "kph", "dollar": "$", "USD": "$", "euro": "€", "EUR": "€", "GBP": "£", "INR": "₹", "rupee": "₹", "JPY": "¥",
    "yen": "¥", "cent": "¢", "barn": "b", "bits": "bit", "katal": "kat", "hartree": "Hartree", "Btu": "BTU",
}  # fmt: skip
_COUNTED = ("gray", "sievert", "decay", "rad", "cycle")
"""Marks of units that are written without them as well: rad/s is 1/s. Two different marks contradict each other."""
_SAME = str.maketrans({"μ": "µ", "\u2126": "Ω", "\u212b": "Å", "℃": "°C", "℉": "°F", "−": "-"})
_POWER = re.compile(
    r"(?P<symbol>[^\d\W]+(?:-[^\d\W]{3,})?|°[^\d\W]*|[$€£¥₹¢%‰])"
    r"(?:\^\{(?P<a>[+-]?\d{1,2})\}|\^?(?P<b>[+-]?\d{1,2}))?"
)
_WORDS = (
    (r"(?i)\bdeg(?:ree)?s?\s+(celsius|fahrenheit|C|F)\b", r"°\1"),
    (r"(?i)\bdegrees?\s+kelvin\b", "K"),
    (r"°\s+(?=[CF]\b)", "°"),
    (r"(?i)\blight[ -]years?\b", "ly"),
    (r"(?i)\belectron[ -]volts?\b", "eV"),
    (r"\bmm\s+Hg\b", "mmHg"),
    (r"\bper\b", "/"),
    (r"\b(?:square|sq\.?)\s+([^\W\d_]+)", r"\1^2"),
    (r"\bcubic\s+([^\W\d_]+)", r"\1^3"),
    (r"([^\W\d_]+)\s+squared\b", r"\1^2"),
    (r"([^\W\d_]+)\s+cubed\b", r"\1^3"),
)


@dataclass(frozen=True, slots=True)
class PhysicalUnit:
    text: str
    factor: Fraction
    powers: tuple[tuple[str, int], ...] = ()
    """Base units with their exponents, in order."""
    offset: Fraction = Fraction(0)

    @property
    def dimensionless(self) -> bool:
        return not self.powers

    def to_base(self, value: Fraction) -> Fraction:
        return (value + self.offset) * self.factor

    def factor_to(self, other: PhysicalUnit) -> Fraction | None:
        """Return the size of this unit in the other one; None if they measure different things. One cycle is 2π radians. A unit
        without an angle may stand for one with it: 1/s for rad/s, and for Hz."""
        mine, theirs = Counter(dict(self.powers)), Counter(dict(other.powers))
        ratio = self.factor / other.factor
        marks, others = ({mark: side.pop(mark, 0) for mark in _COUNTED} for side in (mine, theirs))
        if mine != theirs:
            return None
        if not any(marks.values()) or not any(others.values()):
            return ratio
        cycles = marks.pop("cycle") - others.pop("cycle")
        if marks.pop("rad") + cycles != others.pop("rad") or marks != others:
            return None
        return ratio * (2 * _PI) ** cycles


def read_unit(text: str) -> PhysicalUnit | None:
    """Read a unit; None if a part of the text is no known unit. `kg m s^-2`, `kg*m/s^2`, `kg·m/(s^2)` and `newtons` are the
    same. Behind the first `/` everything divides, as in J/(kg K) and J/kg/K; a product behind it needs brackets."""
    if len(text) > MAX_UNIT_CHARS:
        return None
    plain = text.translate(_SAME).strip()
    for pattern, written in _WORDS:
        plain = re.sub(pattern, written, plain)
    above, *below = [side.strip() for side in plain.split("/")]
    factor, powers, symbols = Fraction(1), Counter[str](), list[tuple[Symbol, int]]()
    for side, sign in [(above, 1), *((side, -1) for side in below)]:
        inner = side[1:-1] if side.startswith("(") and side.endswith(")") else side
        parts = re.sub(r"[*·⋅]", " ", inner).split()
        if sign == 1 and below and parts in ([], ["1"]):
            continue
        if not parts:
            return None
        for part in parts:
            found = _POWER.fullmatch(part)
            symbol = symbol_of(found["symbol"]) if found else None
            exponent = int(found["a"] or found["b"] or 1) * sign if found else 0
            if symbol is None or abs(exponent) > MAX_POWER:
                return None
            symbols.append((symbol, exponent))
    for symbol, exponent in symbols:
        factor *= symbol.factor**exponent
        for base in symbol.base.split():
            name, _, power = base.partition("-") if "-" in base else (base.rstrip("0123456789"), "", "")
            count = -int(power) if power else int(base[len(name) :] or 1)
            powers[name] += count * exponent
    kept = tuple(sorted((name, power) for name, power in powers.items() if power))
    offset = symbols[0][0].offset if len(symbols) == 1 and symbols[0][1] == 1 else Fraction(0)
    return PhysicalUnit(text.strip(), factor, kept, offset)


def symbol_of(word: str) -> Symbol | None:
    """Return the unit of a symbol or a name, with or without a prefix; None for any other word."""
    if word in _SYMBOLS:
        return _SYMBOLS[word]
    for length in (1, 2):
        symbol = _SYMBOLS.get(word[length:])
        if symbol is not None and symbol.prefixes and (power := _PREFIXES.get(word[:length])) is not None:
            return symbol._replace(factor=symbol.factor * Fraction(10) ** power)
    low = word.casefold()
    for name in dict.fromkeys((word, word.removesuffix("s"), low, low.removesuffix("s"))):
        if name in _NAMES:
            return _SYMBOLS[_NAMES[name]]
        for prefix, letter in _LONG_PREFIXES.items():
            rest = name.removeprefix(prefix)
            if rest != name and rest in _NAMES and (symbol := symbol_of(_NAMES[rest])) is not None and symbol.prefixes:
                return symbol._replace(factor=symbol.factor * Fraction(10) ** _PREFIXES[letter])
    return None

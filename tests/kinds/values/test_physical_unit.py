"""Units of measurement: which are the same, and which measure different things."""

from __future__ import annotations

import pytest

from rollyard.kinds.values.physical_unit import read_unit


@pytest.mark.parametrize(
    ("one", "other", "factor"),
    [
        ("kg m/s^2", "N", 1), ("newtons", "kg*m*s^-2", 1), ("km/h", "m/s", 1 / 3.6), ("metres per second", "m s^{-1}", 1),
        ("J/kg/K", "J/(kg K)", 1), ("J/(kg K)", "cal/(g °C)", 1 / 4184), ("mmol/L", "M", 0.001), ("cm^3", "mL", 1),
        ("square metres", "cm^2", 10_000), ("cubic centimetres", "cc", 1), ("1/mol", "mol^-1", 1), ("kWh", "MJ", 3.6),
        ("μF", "uF", 1), ("Å", "nm", 0.1), ("%", "ppm", 10_000), ("eV", "J", 1.602176634e-19), ("light years", "pc", 0.306601),
        ("rad/s", "s^-1", 1), ("1/s", "Hz", 1), ("Hz", "rad/s", 6.283185), ("rpm", "Hz", 1 / 60), ("degrees", "rad", 0.0174533),
        ("mm Hg", "Pa", 133.322), ("kilograms", "lb", 2.20462), ("min", "s", 60), ("T", "G", 10_000), ("c", "m/s", 299792458),
    ],
)  # fmt: skip
def test_units_of_one_dimension_are_converted(one: str, other: str, factor: float) -> None:
    mine, theirs = read_unit(one), read_unit(other)
    assert mine is not None
    assert theirs is not None
    assert float(mine.factor_to(theirs) or 0) == pytest.approx(factor, rel=1e-5)
    assert float(theirs.factor_to(mine) or 0) == pytest.approx(1 / factor, rel=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("m", "s"),
        ("J", "W"),
        ("mol", "kg"),
        ("N/m", "N m"),
        ("Bq", "Hz"),
        ("Gy", "Sv"),
        ("$", "€"),
        ("rad", "sr"),
        ("%", "m"),
    ],
)
def test_units_of_different_things_are_not(one: str, other: str) -> None:
    mine, theirs = read_unit(one), read_unit(other)
    assert mine is not None
    assert theirs is not None
    assert mine.factor_to(theirs) is None


@pytest.mark.parametrize(
    "text", ["", "/", "apples", "k", "x", "xy", "m^", "m^999", "m//s", "kkg", "m or s", "dozen", "π", "m" * 81, "kmin"]
)
def test_what_is_no_unit(text: str) -> None:
    assert read_unit(text) is None


def test_a_temperature_has_the_zero_of_its_unit_only_by_itself() -> None:
    celsius, inverse = read_unit("°C"), read_unit("1/°C")
    assert celsius is not None
    assert inverse is not None
    assert (float(celsius.to_base(celsius.factor * 25)), float(inverse.offset)) == (298.15, 0.0)

"""Judges a choice or a number of a `stem` task by the rules in docs/stem.md. Runs as a checker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rollyard.kinds.stem_task import LETTERS, StemTask
from rollyard.kinds.values.physical_unit import PhysicalUnit
from rollyard.tasks.scoring.checker_process import serve
from rollyard.tasks.scoring.numerals import TOLERANCE
from rollyard.tasks.scoring.option_choice import chosen
from rollyard.tasks.scoring.quantities import Quantity, read_quantities

CPU_SECONDS = 2
MEMORY_BYTES = 1 << 30
MAX_RELATIVE_ERROR = 1_000_000
_ROUNDING = Fraction(1, 10**12)
"""Relative error of π and of roots, which are floats."""


def judge_answer(task: bytes, answer: bytes) -> Mapping[str, Any]:
    """Return {"right": 1.0 or 0.0, "notes": reasons}, and metrics, for the task as JSON."""
    fields, text = StemTask.model_validate_json(task), answer.decode()
    if not text.strip():
        return _wrong("the answer is empty")
    return judge_choice(fields, text) if fields.form == "choice" else judge_number(fields, text)


def judge_choice(task: StemTask, answer: str) -> Mapping[str, Any]:
    letters, right = chosen(answer, task.options), frozenset(task.letters)
    if not letters:
        return _wrong(
            f"the answer {_cut(answer)} is no choice from A to {LETTERS[len(task.options) - 1]}", no_choice=1.0
        )
    shares = _shares(task, letters) if task.several else {}
    if letters == right:
        return {"right": 1.0, "notes": [f"{_listed(letters)} is right"], "parts": shares}
    why = f"the answer chooses {_listed(letters)}, and {_listed(right)} is right"
    return {"right": 0.0, "notes": [why], "parts": shares}


def _shares(task: StemTask, letters: frozenset[str]) -> dict[str, float]:
    """Return the shares of the right and of the wrong options that were chosen."""
    right = frozenset(task.letters)
    wrong = frozenset(LETTERS[: len(task.options)]) - right
    share = {"right_chosen": len(letters & right) / len(right)}
    return share | ({"wrong_chosen": len(letters & wrong) / len(wrong)} if wrong else {})


def judge_number(task: StemTask, answer: str) -> Mapping[str, Any]:
    quantities = read_quantities(answer)
    if not quantities:
        return _wrong(f"the answer {_cut(answer)} is not one number{' with a unit' if task.unit else ''}")
    unit, worst = task.physical_unit, Fraction(0)
    for quantity in quantities:
        if unit is None and quantity.short_scale:
            return _wrong(f"the answer {_cut(answer)} may mean a multiple of its number")
        if (value := in_unit(quantity, unit)) is None:
            named = quantity.noun or (quantity.unit.text if quantity.unit else "")
            why = f"the answer {_cut(answer)} is in {named}, which is not converted to {task.unit}"
            return _wrong(why, wrong_unit=1.0)
        converted = quantity.unit is not None and (unit is None or quantity.unit.factor != unit.factor)
        error = abs(value - task.value)
        if error > allowed_error(task, converted):
            why = f"the answer {_cut(answer)} is not {_with_unit(task.answer, task)} (accepted difference: {_accepted(task)})"
            return _wrong(why, relative_error=_relative(error, task.value))
        if quantity.uncertainty:
            edge = in_unit(replace(quantity, value=quantity.value + quantity.uncertainty), unit)
            if edge is None or abs(edge - value) > allowed_error(task, converted):
                why = f"the uncertainty of the answer {_cut(answer)} is larger than the accepted difference"
                return _wrong(f"{why} ({_accepted(task)})", relative_error=_relative(error, task.value))
        worst = max(worst, error)
    right = f"the answer {_cut(answer)} is right"
    return {"right": 1.0, "notes": [right], "relative_error": _relative(worst, task.value)}


def in_unit(quantity: Quantity, unit: PhysicalUnit | None) -> Fraction | None:
    """Return the number of an answer in the reference's unit; None for another dimension. Without a unit of the reference,
    shares such as % are plain numbers, and every other unit is taken for the one that was meant."""
    if quantity.unit is None or (quantity.implied and (unit is None or unit.powers != quantity.unit.powers)):
        return quantity.value if unit is None or not quantity.noun else None
    if unit is None:
        return quantity.value * (quantity.unit.factor if quantity.unit.dimensionless else 1)
    factor = quantity.unit.factor_to(unit)
    if factor is None:
        return None
    if quantity.unit.offset != unit.offset:
        return quantity.unit.to_base(quantity.value) / unit.factor - unit.offset
    return quantity.value * factor


def allowed_error(task: StemTask, converted: bool) -> Fraction:
    """Return the accepted difference, in the reference's unit."""
    wanted = abs(task.value)
    allowed = [wanted * _ROUNDING]
    if task.absolute_tolerance is not None:
        allowed.append(Fraction(str(task.absolute_tolerance)))
    if task.relative_tolerance is not None:
        allowed.append(wanted * Fraction(str(task.relative_tolerance)))
    if task.significant_figures is not None:
        first = (Decimal(wanted.numerator) / Decimal(wanted.denominator)).adjusted()
        allowed.append(Fraction(10) ** (first - task.significant_figures + 1) / 2)
    if len(allowed) == 1 and (converted or wanted.denominator > 1):
        allowed.append(wanted * TOLERANCE)
    return max(allowed)


def _accepted(task: StemTask) -> str:
    told = [
        _with_unit(f"{task.absolute_tolerance:g}", task) if task.absolute_tolerance is not None else "",
        f"{task.relative_tolerance:.4g} of it" if task.relative_tolerance is not None else "",
        f"{task.significant_figures} significant figures" if task.significant_figures is not None else "",
    ]
    return " or ".join(filter(None, told)) or ("a millionth of it" if task.value.denominator > 1 else "none")


def _with_unit(number: str, task: StemTask) -> str:
    return f"{number} {task.unit}" if task.unit else number


def _relative(error: Fraction, wanted: Fraction) -> float:
    return float(min(error / (abs(wanted) or Fraction(1)), Fraction(MAX_RELATIVE_ERROR)))


def _wrong(note: str, **metrics: float) -> dict[str, Any]:
    return {"right": 0.0, "notes": [note], **metrics}


def _listed(letters: frozenset[str]) -> str:
    return ", ".join(sorted(letters))


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


if __name__ == "__main__":
    serve(judge_answer, CPU_SECONDS, MEMORY_BYTES)

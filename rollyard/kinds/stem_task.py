"""Fields of the task kind `stem`: a question of science or engineering, and the form of its answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.task_fields import TaskFields
from rollyard.kinds.values.physical_unit import PhysicalUnit, read_unit

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_REFERENCE_CHARS = 4000
_NUMBER = re.compile(r"[+-]?(?:(?:\d{1,50}(?:\.\d{0,50})?|\.\d{1,50})(?:[eE][+-]?\d{1,3})?|\d{1,50}/0*[1-9]\d{0,49})")
_OF_FORM = {
    "options": "choice", "several": "choice", "unit": "number", "relative_tolerance": "number", "absolute_tolerance": "number",
    "significant_figures": "number", "rubric": "open", "judgements": "open",
}  # fmt: skip


class StemTask(TaskFields):
    """Question with one answer: a choice, a number with a unit, an expression, or words that a judge compares."""

    question: str = Field(min_length=1)
    form: Literal["choice", "number", "expression", "open"]
    """Form of the answer. choice: letters of options. number: one number, with a unit or without. expression: compared as
    mathematics, as by the kind `math`. open: words, which a model with the role `judge` compares with the reference."""
    answer: str = Field(min_length=1, max_length=MAX_REFERENCE_CHARS)
    """Reference answer. choice: letters, such as B, or `B, D`. number: such as 9.81, -3, 6.02e23 or 1/3."""
    system: str | None = None
    """System prompt. Default: none."""
    tools: list[Literal["bash", "ipython", "editor"]] = []
    """Tools in the rollout's sandbox."""

    options: list[Annotated[str, Field(min_length=1)]] = Field(default=[], max_length=len(LETTERS))
    """choice: texts of the options, which are named A, B, C and so on."""
    several: bool = False
    """choice: more than one option may be right. The agent must choose all right ones, and no other."""

    unit: str | None = None
    """number: unit of the reference, such as `kg m/s^2`, kJ/mol, °C or %. An answer in another unit of the same dimension is
    converted. A number without a unit counts in this one."""
    relative_tolerance: float | None = Field(default=None, ge=0, lt=1)
    """number: accepted difference as a share of the reference."""
    absolute_tolerance: float | None = Field(default=None, ge=0)
    """number: accepted difference, in `unit`. With several tolerances one is enough."""
    significant_figures: int | None = Field(default=None, ge=1, le=15)
    """number: accepted is what differs by half a unit of this figure of the reference."""

    rubric: str | None = Field(default=None, min_length=1, max_length=MAX_REFERENCE_CHARS)
    """open: what a right answer must have, for the judge."""
    judgements: Literal[1, 3, 5, 7, 9] = 1
    """open: number of judgements. The majority decides."""

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, value: str | None) -> str | None:
        if value is not None and read_unit(value) is None:
            raise ValueError(
                "write a unit of known symbols or names, such as `kg m/s^2`, `kJ/mol` or `degrees Celsius`, or leave it out"
            )
        return value

    @model_validator(mode="after")
    def _fields_of_the_form(self) -> Self:
        for name in self.model_fields_set & _OF_FORM.keys():
            if _OF_FORM[name] != self.form:
                raise ValueError(f"`{name}` is for `form: {_OF_FORM[name]}`; leave it out")
        if self.form == "choice":
            self._check_choice()
        if self.form == "number":
            self._check_number()
        return self

    def _check_choice(self) -> None:
        if len(self.options) < 2:
            raise ValueError("`form: choice` needs at least two `options`")
        if len({" ".join(option.split()) for option in self.options}) < len(self.options):
            raise ValueError("two of the `options` have the same text; write each option once")
        known = LETTERS[: len(self.options)]
        if not self.letters or not set(self.letters) <= set(known):
            raise ValueError(f"`answer` names options by their letters, A to {known[-1]}, such as B or `A, C`")
        if len(self.letters) > 1 and not self.several:
            raise ValueError("`answer` names several options: set `several: true`, so that the prompt says so")

    def _check_number(self) -> None:
        if not _NUMBER.fullmatch(self.answer):
            raise ValueError("`answer` must be a number such as 9.81, -3, 6.02e23 or 1/3, with its unit in `unit`")
        if self.value == 0 and (self.significant_figures or (self.relative_tolerance and not self.absolute_tolerance)):
            raise ValueError("a share or the figures of 0 say nothing: set `absolute_tolerance`")

    @property
    def letters(self) -> str:
        """Letters of the right options, in order; empty if `answer` has none."""
        found = re.fullmatch(r"[A-Z](?:[\s,]*[A-Z])*", self.answer.strip())
        return "".join(sorted({*re.findall("[A-Z]", self.answer)})) if found else ""

    @property
    def value(self) -> Fraction:
        return Fraction(self.answer)

    @property
    def physical_unit(self) -> PhysicalUnit | None:
        return None if self.unit is None else read_unit(self.unit)

    def check_roles(self, roles: Collection[str]) -> None:
        if self.form == "open" and "judge" not in roles:
            message = (
                "`form: open` needs a model that judges; add `judge: <InferencePool>` to `inference` of the RolloutPool, "
                "or choose a pool that has it"
            )
            raise Invalid(message, causes=[Cause("task.form", message)])

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return bool(fields.get("tools"))

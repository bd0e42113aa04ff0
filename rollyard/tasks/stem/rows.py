"""Rows of published sets of questions to tasks of the kind `stem`. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.kinds.stem_task import LETTERS, StemTask
from rollyard.kinds.values.physical_unit import read_unit
from rollyard.tasks.rows.dataset_row import Converted, DatasetRow, RowRefused, Unconverted, check_fields, row_outcome
from rollyard.tasks.scoring.quantities import plain_spelling

Fields = dict[str, Any]
_NAMED = (
    "category", "subject", "discipline", "field", "subfield", "difficulty", "raw_subject", "Subdomain", "High-level domain",
    "src", "source", "Answer_type", "theorem",
)  # fmt: skip
"""Fields of rows that become metadata."""
THEOREM_QA_SHARE, SCI_BENCH_SHARE = 0.04, 0.05
"""Relative differences that the evaluations of TheoremQA and SciBench accept."""


@dataclass(frozen=True)
class QuestionFamily:
    name: str
    fields: tuple[str, ...]
    """A row with all of these fields is of the family."""
    convert: Callable[[DatasetRow], Fields]
    """Raises RowRefused."""


def convert(fields: Any, family: QuestionFamily | None = None) -> Converted | Unconverted:
    """Convert a row, as a file has it. `family`: default is the one that its fields tell."""
    return row_outcome(fields, lambda found: _converted(DatasetRow(found), family))


def _converted(row: DatasetRow, family: QuestionFamily | None) -> Converted:
    family = family or _family_of(row)
    task = family.convert(row)
    check_fields(StemTask, task)
    told = {name: row[name] for name in _NAMED if isinstance(row.get(name), str) and 0 < len(row[name]) <= 200}
    return Converted(family.name, {"kind": "stem", **task, "metadata": {"family": family.name, **told}})


def _family_of(row: DatasetRow) -> QuestionFamily:
    for family in QUESTION_FAMILIES:
        if all(name in row for name in family.fields):
            return family
    raise RowRefused(
        f"no family has rows with the fields {', '.join(sorted(row)) or '(none)'}; choose with --family one of "
        f"{', '.join(FAMILY_NAMES)}"
    )


def _gpqa(row: DatasetRow) -> Fields:
    return _shuffled(
        row.text("Question"), row.text("Correct Answer"), [row.text(f"Incorrect Answer {n}") for n in "123"]
    )


def _sciq(row: DatasetRow) -> Fields:
    return _shuffled(row.text("question"), row.text("correct_answer"), [row.text(f"distractor{n}") for n in "123"])


def _shuffled(question: str, right: str, others: Sequence[str]) -> Fields:
    """Put the right answer among the others, at a place that follows from the question."""
    options = [right.strip(), *(other.strip() for other in others)]
    random.Random(question).shuffle(options)
    return _choice(question, options, options.index(right.strip()))


def _mmlu_pro(row: DatasetRow) -> Fields:
    return _choice(row.text("question"), row.names("options"), row["answer_index"])


def _mmlu(row: DatasetRow) -> Fields:
    return _choice(row.text("question"), row.names("choices"), row["answer"])


def _super_gpqa(row: DatasetRow) -> Fields:
    return _choice(row.text("question"), row.names("options"), LETTERS.find(row.text("answer_letter").strip()))


def _choice(question: str, options: Sequence[str], index: Any) -> Fields:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < min(len(options), len(LETTERS)):
        raise RowRefused(f"its answer is none of its {len(options)} options")
    texts = [option.strip() for option in options]
    return {"form": "choice", "question": question.strip(), "options": texts, "answer": LETTERS[index]}


def _theorem_qa(row: DatasetRow) -> Fields:
    if row.get("Picture"):
        raise RowRefused("its question needs a picture")
    question, answer, kind = row.text("Question").strip(), str(row["Answer"]).strip(), row.text("Answer_type")
    if kind == "bool" and answer in ("True", "False"):
        return _choice(question, ["True", "False"], ["True", "False"].index(answer))
    if kind == "integer":
        return {"form": "number", "question": question, "answer": answer}
    if kind == "float":
        return {"form": "number", "question": question, "answer": answer, "relative_tolerance": THEOREM_QA_SHARE}
    if kind == "list of integer":
        members = re.findall(r"-?\d+", answer)
        asked = f"{question}\n\nWrite the list in its order as (a, b, ...)."
        return {"form": "expression", "question": asked, "answer": f"({', '.join(members)})"}
    if kind == "option":
        raise RowRefused("its options are only in the text of its question")
    raise RowRefused(f"answers of the type {kind} are not compared with a tolerance")


def _sci_bench(row: DatasetRow) -> Fields:
    answer = row.text("answer_number").strip().replace("−", "-").replace(",", "")
    fields = {
        "form": "number",
        "question": row.text("problem_text").strip(),
        "answer": answer,
        "relative_tolerance": SCI_BENCH_SHARE,
    }
    unit = plain_spelling(row.text_or_empty("unit"))
    if unit and read_unit(unit) is None:
        raise RowRefused(f"its unit is not known: {row['unit'].strip()}")
    return fields | ({"unit": unit} if unit else {})


def _hle(row: DatasetRow) -> Fields:
    if row.get("image"):
        raise RowRefused("its question needs a picture")
    question, answer = row.text("question").strip(), row.text("answer").strip()
    if row.text("answer_type") != "multipleChoice":
        return {"form": "open", "question": question, "answer": answer}
    if not re.fullmatch("[A-J]", answer):
        raise RowRefused("its answer is no letter from A to J, and its options are only in the text of its question")
    return {"form": "expression", "question": f"{question}\n\nThe answer is one letter.", "answer": answer}


QUESTION_FAMILIES = (
    QuestionFamily("gpqa", ("Question", "Correct Answer", "Incorrect Answer 1"), _gpqa),
    QuestionFamily("mmlu-pro", ("question", "options", "answer_index"), _mmlu_pro),
    QuestionFamily("supergpqa", ("question", "options", "answer_letter"), _super_gpqa),
    QuestionFamily("mmlu", ("question", "choices", "answer"), _mmlu),
    QuestionFamily("sciq", ("question", "correct_answer", "distractor1"), _sciq),
    QuestionFamily("theoremqa", ("Question", "Answer", "Answer_type"), _theorem_qa),
    QuestionFamily("scibench", ("problem_text", "answer_number", "unit"), _sci_bench),
    QuestionFamily("hle", ("question", "answer", "answer_type"), _hle),
)
"""The first one whose fields a row has is the row's."""
FAMILY_NAMES = tuple(family.name for family in QUESTION_FAMILIES)


def question_family(name: str) -> QuestionFamily:
    return next(family for family in QUESTION_FAMILIES if family.name == name)

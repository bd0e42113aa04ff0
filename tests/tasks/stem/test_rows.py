"""Rows of sets of questions become tasks, or say why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollyard.cli.main import cli
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.stem_task import LETTERS
from rollyard.kinds.task import Task
from rollyard.tasks.rows.dataset_row import Converted, Unconverted
from rollyard.tasks.stem.rows import FAMILY_NAMES, convert, question_family

GPQA = {
    "Question": "Which one?\n", "Correct Answer": "right\n", "Incorrect Answer 1": "no", "Incorrect Answer 2": "nor",
    "Incorrect Answer 3": "never", "Subdomain": "Genetics", "High-level domain": "Biology",
}  # fmt: skip
SCIQ = {
    "question": "Which one?", "correct_answer": "right", "distractor1": "no", "distractor2": "nor", "distractor3": "never",
    "support": "",
}  # fmt: skip
MMLU_PRO = {
    "question": "Which?",
    "options": ["a1", "b1", "c1"],
    "answer": "C",
    "answer_index": 2,
    "category": "physics",
}
MMLU = {"question": "Which?", "choices": ["a1", "b1"], "answer": 0, "subject": "anatomy"}
SUPER_GPQA = {"question": "Which?", "options": ["a1", "b1"], "answer": "b1", "answer_letter": "B", "difficulty": "hard"}
THEOREM_QA = {"Question": "How much?", "Answer": "2.5", "Answer_type": "float", "Picture": None}
SCI_BENCH = {
    "problem_text": "How heavy?",
    "answer_number": "+4.5",
    "unit": "$\\mathrm{~kJ} \\mathrm{~mol}^{-1}$",
    "source": "atkins",
}
HLE = {"question": "Why?", "image": "", "answer": "tidal locking", "answer_type": "exactMatch", "category": "Physics"}


def converted(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = convert(row | changes)
    assert isinstance(found, Converted), found
    check_task(Task.model_validate(found.task))
    return found.task


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (MMLU_PRO, {"form": "choice", "options": ["a1", "b1", "c1"], "answer": "C"}),
        (MMLU, {"form": "choice", "options": ["a1", "b1"], "answer": "A"}),
        (SUPER_GPQA, {"form": "choice", "answer": "B", "metadata": {"family": "supergpqa", "difficulty": "hard"}}),
        (THEOREM_QA, {"form": "number", "answer": "2.5", "relative_tolerance": 0.04}),
        (THEOREM_QA | {"Answer": "7", "Answer_type": "integer"}, {"form": "number", "answer": "7"}),
        (THEOREM_QA | {"Answer": "False", "Answer_type": "bool"}, {"form": "choice", "answer": "B"}),
        (
            THEOREM_QA | {"Answer": "[1, -2]", "Answer_type": "list of integer"},
            {"form": "expression", "answer": "(1, -2)"},
        ),
        (SCI_BENCH, {"form": "number", "answer": "+4.5", "unit": "kJ mol^{-1}", "relative_tolerance": 0.05}),
        (HLE, {"form": "open", "answer": "tidal locking", "metadata": {"family": "hle", "category": "Physics"}}),
        (HLE | {"answer": "D", "answer_type": "multipleChoice"}, {"form": "expression", "answer": "D"}),
    ],
)
def test_a_row_becomes_a_task(row: dict[str, Any], expected: dict[str, Any]) -> None:
    task = converted(row)
    assert {name: task[name] for name in expected} == expected


@pytest.mark.parametrize("row", [GPQA, SCIQ])
def test_the_place_of_the_right_answer_follows_from_the_question(row: dict[str, Any]) -> None:
    name = "Question" if "Question" in row else "question"
    tasks = [converted(row, **{name: f"Which is number {n}?"}) for n in range(40)]
    for task in tasks:
        assert task["options"][LETTERS.index(task["answer"])] == "right"
    assert {task["answer"] for task in tasks} == set("ABCD")
    assert tasks[0] == converted(row, **{name: "Which is number 0?"})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (GPQA | {"Incorrect Answer 1": "right"}, "two of the `options` have the same text"),
        (GPQA | {"Incorrect Answer 2": ""}, "its field `Incorrect Answer 2` is missing or empty"),
        (MMLU_PRO | {"answer_index": 3}, "its answer is none of its 3 options"),
        (SUPER_GPQA | {"answer_letter": "?"}, "its answer is none of its 2 options"),
        (THEOREM_QA | {"Picture": {"bytes": "x"}}, "its question needs a picture"),
        (THEOREM_QA | {"Answer_type": "option"}, "its options are only in the text of its question"),
        (THEOREM_QA | {"Answer_type": "list of float"}, "answers of the type list of float"),
        (THEOREM_QA | {"Answer": "about 2"}, "must be a number such as"),
        (SCI_BENCH | {"unit": "$10^{3}$ furlongs"}, "its unit is not known: $10^{3}$ furlongs"),
        (HLE | {"image": "data:image/png;base64,x"}, "its question needs a picture"),
        (HLE | {"answer": "Z", "answer_type": "multipleChoice"}, "its answer is no letter from A to J"),
        (
            {"prompt": "?"},
            f"no family has rows with the fields prompt; choose with --family one of {', '.join(FAMILY_NAMES)}",
        ),
        ([], "it is not an object"),
    ],
)
def test_a_row_that_does_not_convert_says_why(row: Any, why: str) -> None:
    found = convert(row)
    assert isinstance(found, Unconverted), found
    assert why in found.reason


@pytest.mark.parametrize("family", ["mmlu", "mmlu-pro"])
def test_a_row_without_the_answer_of_a_named_family_is_refused(family: str) -> None:
    row = {"question": "Which?", "options": ["a", "b"], "choices": ["a", "b"]}
    found = convert(row, question_family(family))
    assert isinstance(found, Unconverted)
    assert "its fields do not have the form of its family: KeyError: 'answer" in found.reason


def test_a_question_with_half_a_surrogate_pair_is_refused() -> None:
    for row in (GPQA | {"Question": "\ud800"}, MMLU | {"question": "\ud800"}):
        assert isinstance(convert(row), Unconverted)


def test_a_hostile_row_refuses_no_other_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"a":' * 50_000 + "\n" + "".join(json.dumps(row) + "\n" for row in (GPQA | {"Question": "\ud800"}, HLE))
    )
    done = CliRunner().invoke(cli, ["tasks", "import", "stem", str(tmp_path / "rows.jsonl")])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["metadata"]["family"] for line in done.stdout.splitlines()] == ["hle"]
    for number, why in ((1, "nested too deeply"), (2, "UnicodeEncodeError")):
        assert any(
            line.startswith(f"{tmp_path / 'rows.jsonl'}:{number}: ") and why in line
            for line in done.stderr.splitlines()
        )


def test_the_command_writes_tasks_and_names_refused_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (GPQA, {"prompt": "?"}, HLE)))
    done = CliRunner().invoke(cli, ["tasks", "import", "stem", str(tmp_path / "rows.jsonl")])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["metadata"]["family"] for line in done.stdout.splitlines()] == ["gpqa", "hle"]
    assert f"{tmp_path / 'rows.jsonl'}:2: refused: no family" in done.stderr
    done = CliRunner().invoke(cli, ["tasks", "import", "stem", str(tmp_path / "rows.jsonl"), "--family", "scibench"])
    assert done.exit_code == 1

"""Tasks are checked by the model of their kind, of Rollyard or of a plug-in, wherever they enter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.installed_task_fields import check_task, installed_models
from rollyard.kinds.math_task import MathTask
from rollyard.kinds.task import Task
from rollyard.kinds.task_fields import CommonFields

HAIKU = """
from rollyard.tasks import TaskFields
class HaikuFields(TaskFields):
    topic: str
    lines: int = 3
    def model_post_init(self, context):
        {3: True}[self.lines]
"""
ENTRIES = {
    "haiku": "haiku_fields:HaikuFields", "gone": "no_such_module:Fields", "leaving": "leaving_fields:Fields",
    "untyped": "haiku_fields:TaskFields.image", "foreign": "pathlib:Path",
}  # fmt: skip


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Models that can be imported, or not."""
    (tmp_path / "haiku_fields.py").write_text(HAIKU)
    (tmp_path / "leaving_fields.py").write_text("raise SystemExit(3)\n")
    known = tmp_path / "haiku-1.dist-info"
    known.mkdir()
    entries = "".join(f"{kind} = {value}\n" for kind, value in ENTRIES.items())
    (known / "entry_points.txt").write_text(f"[rollyard.task_fields]\n{entries}")
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: haiku\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_models.cache_clear()
    yield tmp_path
    installed_models.cache_clear()
    sys.modules.pop("haiku_fields", None)


def test_the_built_in_kinds_have_their_models_by_the_same_way_as_plug_ins() -> None:
    assert installed_models().keys() >= {"math", "code", "env", "swe"}


@pytest.mark.usefixtures("plug_ins")
def test_a_task_of_a_plug_in_is_checked_by_its_model() -> None:
    assert check_task(Task(kind="haiku", topic="rain")).model_dump(exclude_defaults=True) == {"topic": "rain"}
    with pytest.raises(Invalid, match="the haiku task is invalid") as found:
        check_task(Task(kind="haiku", topci="rain"))
    assert [cause.field for cause in found.value.causes] == ["task.topic", "task.topci"]


@pytest.mark.usefixtures("plug_ins")
def test_a_validator_that_fails_is_told_and_stops_no_server() -> None:
    with pytest.raises(Invalid, match="the haiku task cannot be checked: its model raised KeyError: 5"):
        check_task(Task(kind="haiku", topic="rain", lines=5))


@pytest.mark.usefixtures("plug_ins")
def test_a_model_that_cannot_be_imported_removes_only_the_check_of_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("gone", "leaving", "untyped", "foreign"):
        assert type(check_task(Task(kind=kind, anything=1))) is CommonFields
        assert f"the fields of task kind {kind} are not checked here: {ENTRIES[kind]} cannot be imported" in caplog.text
    with pytest.raises(Invalid, match=r"task\.answer"):
        check_task(Task(kind="math", problem="1+1"))


def test_a_kind_without_a_model_has_the_fields_of_every_task() -> None:
    assert check_task(Task(kind="quiz", image="docker://a/b", question="?")).image == "docker://docker.io/a/b:latest"
    with pytest.raises(Invalid, match="Input should be a valid string"):
        check_task(Task(kind="quiz", image=5))


@pytest.mark.parametrize(
    "metadata",
    [{"a=b": 1}, {"": 1}, {"x" * 129: 1}, {f"n{i}": i for i in range(33)}, {"note": "x" * 4096}, ["hard"], {"a\n": 1}],
)
def test_metadata_are_bounded(metadata: object) -> None:
    with pytest.raises(Invalid, match=r"task\.metadata"):
        check_task(Task(kind="quiz", metadata=metadata))


def test_fields_are_validated_once_and_a_task_stays_what_it_was() -> None:
    task, other = (Task(kind="math", problem="1+1", answer="2") for _ in range(2))
    assert task.fields_as(MathTask) is task.fields_as(MathTask)
    assert (task, task.model_dump()) == (other, {"kind": "math", "problem": "1+1", "answer": "2"})


def test_a_module_of_fields_loads_no_handler() -> None:
    code = (
        "import sys; from rollyard.tasks import TaskFields; print(sorted(m for m in sys.modules if 'rollyard.' in m))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "rollyard.kinds" in loaded
    assert "rollyard.sandbox" not in loaded
    assert "rollyard.tasks.base" not in loaded

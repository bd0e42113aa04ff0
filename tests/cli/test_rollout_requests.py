"""Requests from a file of tasks."""

from __future__ import annotations

from pathlib import Path

from rollyard.cli.rollout_requests import read_tasks


def test_an_image_of_the_command_line_is_for_tasks_that_name_none(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    own = '{"kind": "math", "problem": "?", "answer": "1", "image": "docker://r.example/own:1"}'
    file.write_text('{"kind": "math", "problem": "?", "answer": "1"}\n' + own)
    numbered = read_tasks(str(file), "p", {"pool": "swe"}, "docker://r.example/all:1")
    assert [one.request.task.fields["image"] for one in numbered] == [
        "docker://r.example/all:1",
        "docker://r.example/own:1",
    ]

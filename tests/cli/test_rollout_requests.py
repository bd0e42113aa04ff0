"""Requests from a file of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from rollyard.cli.rollout_requests import given_image, read_tasks


def test_an_image_of_the_command_line_is_for_tasks_that_name_none(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    own = '{"kind": "math", "problem": "?", "answer": "1", "image": "docker://r.example/own:1"}'
    file.write_text('{"kind": "math", "problem": "?", "answer": "1"}\n' + own)
    numbered = read_tasks(str(file), "p", {"pool": "swe"}, "docker://r.example/all:1")
    assert [one.request.task.fields["image"] for one in numbered] == [
        "docker://r.example/all:1",
        "docker://r.example/own:1",
    ]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """JSON may have U+2028 and U+0085 in a string as they are, and a file of Windows has \\r before the newline."""
    file, problem = tmp_path / "tasks.jsonl", "a\u2028b\x85c\u2029"
    text = json.dumps({"kind": "math", "problem": problem, "answer": "1"}, ensure_ascii=False)
    file.write_text(f"{text}\r\n\r\n{text}\n", newline="")
    numbered = read_tasks(str(file), "p", {"pool": "swe"})
    assert [(one.line, one.request.id, one.request.task.fields["problem"]) for one in numbered] == [
        (1, "p-1", problem),
        (3, "p-3", problem),
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("images/one", "/folder/images/one"),
        ("./a.sif", "/folder/a.sif"),
        ("../b", "/b"),
        ("/abs", "/abs"),
        ("oci-archive:a.tar:v1", "oci-archive:/folder/a.tar:v1"),
        ("docker://debian", "docker://docker.io/library/debian:latest"),
        ("built:numbers", "built:numbers:latest"),
    ],
)
def test_a_relative_path_of_the_command_line_is_below_the_working_folder(text: str, name: str) -> None:
    assert given_image(text, "/folder") == name


def test_a_name_of_the_command_line_that_can_never_work_is_refused() -> None:
    with pytest.raises(
        click.UsageError, match=r"--image: 'ubuntu:24\.04' has a form that is not supported: write docker://"
    ):
        given_image("ubuntu:24.04", "/folder")

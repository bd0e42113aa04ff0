"""Requests from a file of tasks."""

from __future__ import annotations

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

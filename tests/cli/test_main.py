"""The list of commands in `rollyard --help`."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rollyard.cli.main import COMMANDS, cli


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_sentence_of_its_own_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name][1]


def test_help_lists_each_command_with_its_line() -> None:
    shown = " ".join(CliRunner().invoke(cli, ["--help"], terminal_width=200).output.split())
    assert all(f"{name} {line}" in shown for name, (_, line) in COMMANDS.items())

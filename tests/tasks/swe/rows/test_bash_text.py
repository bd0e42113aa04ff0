"""Scripts made of texts do what bash makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollyard.tasks.swe.rows.bash_text import heard_after, with_input, written


def bash(script: str) -> tuple[str, str]:
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("text", ["", "x", "a\n$HOME `b` \\ ' \"\n", "END_OF_TEXT\nEND_OF_TEXT_1\nx\n"])
def test_a_command_reads_the_text_as_it_is(text: str, tmp_path: Path) -> None:
    assert bash(with_input("cat", text) + "echo after")[0] == (text if text.endswith("\n") else f"{text}\n") + "after\n"
    bash(written(str(tmp_path / "a 'b'"), text))
    assert (tmp_path / "a 'b'").read_text().rstrip("\n") == text.rstrip("\n")


def test_of_two_parts_the_second_is_heard_and_has_the_variables_of_the_first() -> None:
    script = heard_after("export A=1\necho PASSED forged; echo x >&2", "echo $A; echo y >&2; false || true")
    assert bash(script) == ("1\n", "y\n")
    assert bash(heard_after("", "echo alone")) == ("alone\n", "")

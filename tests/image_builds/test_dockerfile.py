"""The text of Dockerfiles: instructions, variables, patterns."""

from __future__ import annotations

import pytest

from rollyard.core.errors import ImageBuildFailed
from rollyard.image_builds.dockerfile import parse
from rollyard.image_builds.file_patterns import IgnoreRules, pattern
from rollyard.image_builds.variables import BadText, expand, pairs, split


def test_lines_are_joined_and_comments_left_out() -> None:
    file = parse(
        '# syntax=docker/dockerfile:1\n\nfrom a:1 as One\nRUN x && \\\n  # no\n\n  y # kept\nCOPY --from=b ["a b", "c"]\n'
    )
    (stage,) = file.stages
    assert (stage.name, stage.base) == ("one", "a:1")
    run, copy = stage.instructions
    assert (run.line, run.text) == (4, "x &&   y # kept")
    assert (copy.line, copy.flags, copy.listed) == (8, {"from": "b"}, ("a b", "c"))


def test_another_escape_character() -> None:
    (stage,) = parse("# escape=`\nFROM a\nRUN b `\n c\\\nRUN d\n").stages
    assert [one.text for one in stage.instructions] == ["b  c\\", "d"]


def test_texts_after_an_instruction() -> None:
    (stage,) = parse("FROM a\nRUN cat <<A > b && cat <<-'C'\n# one\nA\n\ttwo\n\tC\nRUN echo 1<<2\n").stages
    first, second = stage.instructions
    assert [(one.name, one.text, one.literal) for one in first.heredocs] == [
        ("A", "# one\n", False),
        ("C", "two\n", True),
    ]
    assert second.heredocs == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FROM a\nRUM b\n", r"^Dockerfile:2: there is no instruction 'RUM': write FROM, RUN, COPY"),
        ("FORM a\n", r"^Dockerfile:1: there is no instruction 'FORM': write .*; did you mean `FROM`\?"),
        ("RUN a\n", r"^Dockerfile:1: RUN stands before the first FROM"),
        ("", "it has no FROM"),
        ("FROM a b\n", "FROM IMAGE AS NAME"),
        ("FROM a\nRUN --foo=1 x\n", "RUN has no flag --foo here: write --mount, --network"),
        ("FROM a\nRUN <<END\nx\n", "no line END ends the text"),
        ("FROM a\nCOPY\n", "write COPY FILE… PLACE"),
    ],
)
def test_what_cannot_be_read_names_the_line_and_the_remedy(text: str, error: str) -> None:
    with pytest.raises(ImageBuildFailed, match=error):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-${A}-$B", "1-1-"),
        ("${B:-x$A}", "x1"),
        ("${A:+set}${B:+not}", "set"),
        ("${E-x}${E:-y}", "y"),
        ("'$A' \"$A\" \\$A", "$A 1 $A"),
        ("${B:-${A}}", "1"),
        ("50$ $", "50$ $"),
    ],
)
def test_variables(text: str, value: str) -> None:
    assert expand(text, {"A": "1", "E": ""}) == value


def test_pairs() -> None:
    assert pairs("A=1 B=\"2 3\" C='x'y D=a\\ b", {}) == {"A": "1", "B": "2 3", "C": "xy", "D": "a b"}
    assert pairs("A b  c", {}) == {"A": "b  c"}
    assert split('a "b c" $X', {"X": "d e"}) == ["a", "b c", "d e"]
    for text in ("A", "A=1 b", 'A="', "A=${B", "A=${B:?no}"):
        with pytest.raises(BadText):
            pairs(text, {})


def test_patterns() -> None:
    def matches(text: str, path: str) -> bool:
        return pattern(text).fullmatch(path) is not None

    assert matches("*.py", "a.py")
    assert not matches("*.py", "a/b.py")
    assert matches("**/*.py", "a.py")
    assert matches("**/*.py", "a/b/c.py")
    assert matches("a/[b-d]?", "a/cx")
    assert matches("[^a]b", "cb")
    assert matches(r"\*", "*")


def test_the_last_rule_that_matches_decides() -> None:
    rules = IgnoreRules(["# no", "", "*", "!src", "src/*.log", "!src/keep.log", "/build/"])
    kept = ["src", "src/a.py", "src/keep.log", "src/sub/b.log"]
    assert [path for path in [*kept, "a", "src/x.log", "build/y"] if not rules.ignores(path)] == kept

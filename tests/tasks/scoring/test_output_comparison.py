"""Outputs that are equal, and outputs that are not."""

from __future__ import annotations

import pytest

from rollyard.tasks.scoring.output_comparison import OutputRule, surely_equal, why_different

TOKENS, LINES, EXACT = OutputRule(), OutputRule("lines"), OutputRule("exact")
NEAR = OutputRule(relative=1e-6, absolute=1e-9)


@pytest.mark.parametrize(
    ("rule", "expected", "found", "why"),
    [
        (TOKENS, b"1 2\n3", b"1\n2   3\r\n\n", None),
        (TOKENS, b"1.0", b"1", "token 1 is '1', expected '1.0'"),
        (TOKENS, b"Yes", b"YES", "token 1 is 'YES', expected 'Yes'"),
        (TOKENS, b"1 2 3", b"1 2", "it has 2 tokens, expected 3"),
        (TOKENS, b"", b"", None),
        (TOKENS, b"1", b"1\x00", "token 1 is '1\\x00', expected '1'"),
        (LINES, b"a b\nc\n", b"a b  \nc\n\n", None),
        (LINES, b"a b\nc\n", b"a  b\nc\n", "line 1 is 'a  b', expected 'a b'"),
        (LINES, b"a\n\nb", b"a\nb", "line 2 is 'b', expected ''"),
        (LINES, b"a", b"a\nb", "it has 2 lines, expected 1"),
        (EXACT, b"a\n", b"a\n", None),
        (EXACT, b"a\n", b"a", "it has 1 bytes, expected 2"),
        (NEAR, b"0.3333333", b"0.33333330001", None),
        (NEAR, b"0.33", b"0.34", "token 1 is '0.34', expected '0.33'"),
        (NEAR, b"1e3", b"1000.0000001", None),
        (NEAR, b"0", b"-0.0000000001", None),
        (NEAR, b"1000000006", b"1000000007", "token 1 is '1000000007', expected '1000000006'"),
        (NEAR, b"5", b"5.0000001", None),
        (NEAR, b"5.0", b"nan", "token 1 is 'nan', expected '5.0'"),
        (NEAR, b"5.0", b"inf", "token 1 is 'inf', expected '5.0'"),
        (NEAR, b"1e999", b"1e998", "token 1 is '1e998', expected '1e999'"),
        (NEAR, b"1000.5", b"1_000.5", "token 1 is '1_000.5', expected '1000.5'"),
        (NEAR, b"x 1.0", b"x 1.0000000001", None),
        (NEAR, b"7", b"+7", None),
    ],
)
def test_outputs_are_equal_by_their_rule(rule: OutputRule, expected: bytes, found: bytes, why: str | None) -> None:
    assert why_different(rule, expected, found) == why
    assert not surely_equal(rule, expected, found) or why is None

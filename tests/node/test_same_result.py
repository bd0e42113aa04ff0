"""Results of the same command in two equal sandboxes, and results that only look alike."""

from __future__ import annotations

import pytest

from rollyard.node.same_result import same, was_cut

SAME = {
    "the clock": ("Mon Nov 30 05:02:59 UTC 2026", "Tue Dec  1 17:00:01 UTC 2026"),
    "ISO": ("at 2026-11-30T05:02:59.123Z: ready", "at 2026-12-01T17:00:01.5Z: ready"),
    "a log": ("05:02:59,123 INFO ok", "17:00:01,001 INFO ok"),
    "ls": (
        "-rw-r--r-- 1 agent agent  5 Nov 30 05:02 a.txt\n",
        "-rw-r--r-- 1 agent agent  5 Dec  1 17:00 a.txt\n",
    ),
    "pytest": ("==== 3 passed in 0.12s ====", "==== 3 passed in 12.40s ===="),
    "unittest": ("Ran 4 tests in 0.001s\n\nOK", "Ran 4 tests in 0.020s\n\nOK"),
    "time": ("real\t0m0.012s\nuser\t0m0.001s", "real\t1m2.5s\nuser\t0m0.020s"),
    "a job": ("[1] 4711", "[1] 99"),
    "a pid": ("started, pid 4711", "started, pid 12"),
    "another pid": ("PID=4711 up", "PID=8 up"),
    "an object": ("<Foo object at 0x7f3a5c0b2d90>", "<Foo object at 0x7fffb1c2e0d0>"),
    "mktemp": ("/tmp/tmp.Ab3dE9xYz1", "/tmp/tmp.Zz9yX8wV7u"),
    "tempfile": ("wrote /tmp/tmpab12_x9z/out", "wrote /tmp/tmpq0q0q0q0/out"),
    "a port": ("listening on 127.0.0.1:43121", "listening on 127.0.0.1:50999"),
}
OTHER = {
    "a number": ("3 passed", "4 passed"),
    "a word": ("ok", "failed"),
    "a value": ("x = 0.12", "x = 0.13"),
    "an exit code": ("a\n[exit code 1]", "a\n[exit code 2]"),
    "a file name": ("a1.txt", "a2.txt"),
    "a line more": ("a", "a\nb"),
    "a size": ("-rw-r--r-- 1 agent agent  5 Nov 30 05:02 a", "-rw-r--r-- 1 agent agent  6 Nov 30 05:02 a"),
    "a job's number": ("[1] 4711", "[2] 4711"),
    "a short address": ("0x1f", "0x2f"),
    "a version": ("Python 3.11.2", "Python 3.11.3"),
    "a digest": ("d41d8cd98f00b204", "e41d8cd98f00b204"),
    "a line's place": ("file.py:12:5: E1", "file.py:13:5: E1"),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_what_two_runs_may_differ_in(pair: tuple[str, str]) -> None:
    assert same(*pair)


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER)
def test_everything_else_is_another_result(pair: tuple[str, str]) -> None:
    assert not same(*pair)


def test_a_call_that_was_cut() -> None:
    assert was_cut("half\n[timed out after 30 s and was stopped]")
    assert not was_cut("the test timed out after 30 s and was stopped")

"""Control tests: no honest code passes them, and they are Python still."""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rollyard.tasks.swe.control_tests import control_tests, controls_among

TESTS = b'''import unittest


class A(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(f(1), (
            5
        ))
        assert f(2) == "\xc3\xa9", "why"

    def test_raises(self):
        """Docstring."""
        with self.assertRaises(ValueError):
            f(3)

    def test_line(self): pass

    def helper(self):
        assert 1 == 1
'''


def test_comparisons_get_a_value_that_equals_nothing_and_other_tests_fail() -> None:
    changed, names = control_tests(TESTS)
    assert names == {"test_equal", "test_raises"}
    assert (
        changed
        == b'''import unittest


class A(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(f(1), (
            object()
        ))
        assert f(2) == object(), "why"

    def test_raises(self):
        """Docstring."""
        raise AssertionError("control")
        with self.assertRaises(ValueError):
            f(3)

    def test_line(self): pass

    def helper(self):
        assert 1 == 1
'''
    )


def test_a_file_that_is_not_python_stays_as_it_is() -> None:
    assert control_tests(b"print 'old'\n") == (b"print 'old'\n", frozenset())


def test_tests_of_the_lists_are_found_by_module_and_name() -> None:
    found = [
        "tests/test_a.py::A::test_equal[x]",
        "test_equal (tests.test_a.A.test_equal)",
        "A.test_equal",
        "test_equal",
    ]
    others = [
        "tests/test_b.py::test_equal",
        "test_equal (tests.test_b.A.test_equal)",
        "tests/test_a.py::test_other",
        "A.test",
    ]
    assert controls_among([*found, *others], {"test_a": {"test_equal"}, "test_c": {"test_other"}}) == {*found}


def test_threads_get_the_same_as_one_while_garbage_is_searched() -> None:
    """Python 3.11: a search for garbage that runs Python code in the middle of a parse lets another thread parse."""
    source = b"def test_a():\n    assert f([1, {2: (3, [4])}]) == [5, (6,)]\n" * 80
    before, expected, interval = gc.callbacks.copy(), control_tests(source), sys.getswitchinterval()
    gc.callbacks.append(lambda *_: time.sleep(0))
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(control_tests, [source] * 8))
    finally:
        sys.setswitchinterval(interval)
        gc.callbacks[:] = before
    assert found == [expected] * 8

"""Reasons as texts, and changed copies of models."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.kinds.base import KindModel, ObjectMeta, Reason, evolve


@given(st.from_regex(r"[A-Z][A-Za-z0-9]*", fullmatch=True), st.text())
def test_a_reason_is_the_same_after_its_text_was_parsed(word: str, message: str) -> None:
    assert Reason.parse(str(Reason(word, message))) == Reason(word, message)


@pytest.mark.parametrize("text", ["http://node:8000 does not answer", "at 12:00:00: too late", "no endpoint", ""])
def test_no_colon_alone_makes_the_text_before_it_a_word(text: str) -> None:
    assert Reason.parse(text) == Reason("Unknown", text)


def test_evolve_changes_a_copy() -> None:
    meta = ObjectMeta(name="a", labels={"x": "1"})
    assert evolve(meta, name="b") == ObjectMeta(name="b", labels={"x": "1"})
    assert meta.name == "a"


def test_evolve_refuses_a_field_that_the_model_does_not_have() -> None:
    with pytest.raises(TypeError, match="ObjectMeta has no field lables; its fields are name, namespace"):
        evolve(ObjectMeta(name="a"), lables={})


def test_threads_may_make_the_first_objects_of_a_model_at_once() -> None:
    starting = threading.Barrier(8)

    class Inner(KindModel):
        number: int = 1

    class Outer(KindModel):
        inner: Inner

    def first(_: int) -> Outer:
        starting.wait(60)
        return Outer.model_validate({"inner": {"number": "2"}})

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(first, range(8))) == {Outer(inner=Inner(number=2))}

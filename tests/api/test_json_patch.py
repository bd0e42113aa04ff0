"""JSON patches by RFC 6902. The first cases are those of its appendix A."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.api.json_patch import json_patch
from rollyard.core.errors import BadRequest, Invalid


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "c"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"thud": "fred"}},
        ),
        ({"foo": ["a", "b", "c"]}, [{"op": "move", "from": "/foo/0", "path": "/foo/2"}], {"foo": ["b", "c", "a"]}),
        ({"foo": "bar"}, [{"op": "test", "path": "/foo", "value": "bar"}], {"foo": "bar"}),
        ({"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"a": {}}}], {"foo": "bar", "child": {"a": {}}}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["x"]}], {"foo": ["bar", ["x"]]}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": {"x": 1}}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": {"x": 1}, "b": {"x": 1}}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": 1.0}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1.0}),
    ],
)
def test_operations(target: Any, operations: list[dict[str, Any]], result: Any) -> None:
    assert json_patch(target, operations) == result


def test_the_target_and_the_values_stay_as_they_were() -> None:
    target, value = {"a": {"b": [1]}}, {"c": 1}
    assert json_patch(target, [{"op": "add", "path": "/v", "value": value}, {"op": "add", "path": "/v/d", "value": 2}])
    assert (target, value) == ({"a": {"b": [1]}}, {"c": 1})


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/foo", "value": "other"},
        {"op": "test", "path": "/one", "value": True},
        {"op": "remove", "path": "/nothing"},
        {"op": "replace", "path": "/nothing", "value": 1},
        {"op": "add", "path": "/nothing/deep", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "remove", "path": "/list/-"},
        {"op": "move", "from": "/obj", "path": "/obj/inside"},
        {"op": "copy", "from": "/nothing", "path": "/x"},
    ],
)
def test_an_operation_that_does_not_fit_is_named(operation: dict[str, Any]) -> None:
    target = {"foo": "bar", "one": 1, "list": [1], "obj": {}}
    with pytest.raises(Invalid, match=rf"operation 1 of the patch \({operation['op']}\) failed"):
        json_patch(target, [{"op": "test", "path": "", "value": target}, operation])


@pytest.mark.parametrize(
    "operations",
    [{"op": "add"}, ["x"], [{"op": "add", "path": "a", "value": 1}], [{"op": "add", "path": "/a"}],
     [{"op": "merge", "path": ""}], [{"op": "move", "path": "/a"}], [{"op": "test", "path": ""}] * 10_001],
)  # fmt: skip
def test_what_is_no_patch_is_refused(operations: Any) -> None:
    with pytest.raises(BadRequest):
        json_patch({}, operations)


def test_copies_of_copies_cannot_fill_the_memory() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(60)]
    with pytest.raises(Invalid, match="copies more than"):
        json_patch({"text": "x" * 1000}, doubling)


def test_a_patch_cannot_nest_values_without_end() -> None:
    deep = [{"op": "add", "path": "/a" * n, "value": {}} for n in range(1, 1200)]
    with pytest.raises(Invalid, match="levels deep"):
        json_patch({}, deep)

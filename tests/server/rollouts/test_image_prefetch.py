"""Which node agents pull which images of queued rollouts."""

from __future__ import annotations

from rollyard.server.rollouts.image_prefetcher import MOST_PREFETCHED, PrefetchNode, assign


def node(*ready: str, slots: int = 8) -> PrefetchNode:
    return PrefetchNode(set(ready), slots)


def test_images_of_the_head_of_the_queue_are_spread_over_the_nodes() -> None:
    images = {f"i{n}": 1 for n in range(20)}
    chosen = assign(images, [node(), node()])
    assert chosen == [["i0", "i2", "i4", "i6"], ["i1", "i3", "i5", "i7"]]
    assert all(len(own) == MOST_PREFETCHED for own in chosen)


def test_an_image_that_is_ready_somewhere_is_not_pulled_again() -> None:
    assert assign({"a": 8, "b": 1}, [node("a"), node()]) == [["b"], []]


def test_an_image_of_many_rollouts_goes_to_as_many_nodes_as_they_need() -> None:
    assert assign({"a": 17}, [node(), node(), node(), node()]) == [["a"], ["a"], ["a"], []]
    assert assign({"a": 17}, [node("a"), node(), node(), node()]) == [[], ["a"], ["a"], []]


def test_without_nodes_or_rollouts_nothing_is_pulled() -> None:
    assert assign({"a": 1}, []) == []
    assert assign({}, [node()]) == [[]]

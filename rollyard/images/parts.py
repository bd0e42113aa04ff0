"""Images made of parts, such as layers, that several images have: what each image has alone, and which ones to delete. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar


class HasParts(Protocol):
    @property
    def parts(self) -> frozenset[str]:
        """Names of the parts."""


T = TypeVar("T", bound=HasParts)


def own_and_shared(images: Sequence[HasParts], sizes: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return for each image the bytes of the parts that it alone has, and of those that others have too. `sizes`: bytes of
    each part."""
    uses, found = _uses(images), []
    for one in images:
        own = sum(sizes.get(part, 0) for part in one.parts if uses[part] == 1)
        found.append((own, sum(sizes.get(part, 0) for part in one.parts) - own))
    return found


def chosen(unused: Sequence[T], images: Sequence[HasParts], sizes: Mapping[str, int], excess: int) -> list[T]:
    """Return the first of `unused` whose deletion frees `excess` bytes: parts that no other of `images` has."""
    uses, found = _uses(images), list[T]()
    for one in unused:
        if excess <= 0:
            break
        uses.subtract(one.parts)
        excess -= sum(sizes.get(part, 0) for part in one.parts if not uses[part])
        found.append(one)
    return found


def _uses(images: Sequence[HasParts]) -> Counter[str]:
    return Counter(part for one in images for part in one.parts)

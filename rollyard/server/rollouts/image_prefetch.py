"""Choice of the node agents that pull the images of queued rollouts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

MOST_PREFETCHED = 4
"""Greatest number of images that one node agent is asked to pull."""


@dataclass(frozen=True, slots=True)
class PrefetchNode:
    ready: Collection[str]
    """Images that are complete on the node."""
    slots: int
    """Number of rollouts that the node agent can have in INIT and RUN."""


def assign(images: Mapping[str, int], nodes: Sequence[PrefetchNode]) -> list[list[str]]:
    """Return the images that each node should pull, in the order in which they will be needed.

    `images`: image -> number of queued rollouts, in the order of the queue. An image goes to as many nodes as its rollouts
    need. The nodes that have the image count first; of the others, those with the fewest images to pull are taken.
    """
    chosen: list[list[str]] = [[] for _ in nodes]
    for image, count in images.items():
        left = count - sum(node.slots for node in nodes if image in node.ready)
        for place in sorted(range(len(nodes)), key=lambda place: len(chosen[place])):
            if left <= 0 or len(chosen[place]) >= MOST_PREFETCHED:
                break
            if image not in nodes[place].ready:
                chosen[place].append(image)
                left -= max(1, nodes[place].slots)
    return chosen

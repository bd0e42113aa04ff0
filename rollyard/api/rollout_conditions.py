"""Conditions of a search for rollouts, from the query parameters of a request."""

from __future__ import annotations

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.query_parameters import flag, integer, namespace_of, number, seconds
from rollyard.core.errors import BadRequest
from rollyard.kinds import task_metadata
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutFilter, RolloutSearch, SortField

SEARCHED = (
    "namespace", "pool", "group", "status", "metadata", "suspicious", "kind", "mode", "reason", "task", "batch", "prefix",
    "since", "until", "min_reward", "max_reward",
    "failed_calls", "failed_tool", "lost", "lost_reason",
)  # fmt: skip


def conditions(request: web.Request, limit: int) -> RolloutFilter:
    """Read the conditions of a search. Raises BadRequest."""
    query = request.query
    try:
        statuses = tuple(Status(word) for word in query.get("status", "").split(",") if word)
    except ValueError:
        raise BadRequest(f"status must be one of {', '.join(Status)}, or several separated by commas") from None
    return RolloutFilter(
        namespace=namespace_of(request),
        pool=query.get("pool"),
        group=query.get("group"),
        metadata=_metadata_items(query.get("metadata")),
        suspicious=flag(request, "suspicious"),
        status=statuses,
        after_seq=integer(request, "after", 0),
        limit=limit,
        search=_search(request),
    )


def _search(request: web.Request) -> RolloutSearch | None:
    """Read the conditions that need a search; None if there is none."""
    query, sort = request.query, request.query.get("sort", "")
    if sort.removeprefix("-") not in ("", *SortField):
        raise BadRequest(f"sort must be one of {', '.join(SortField)}, with - before it for the greatest first")
    found = RolloutSearch(
        kind=query.get("kind"),
        mode=query.get("mode"),
        reason=query.get("reason"),
        task=query.get("task"),
        batch=query.get("batch"),
        prefix=query.get("prefix", ""),
        since=seconds(request, "since", 0.0) if "since" in query else None,
        until=seconds(request, "until", 0.0) if "until" in query else None,
        min_reward=number(request, "min_reward"),
        max_reward=number(request, "max_reward"),
        failed_calls=flag(request, "failed_calls"),
        failed_tool=query.get("failed_tool"),
        lost=flag(request, "lost"),
        lost_reason=query.get("lost_reason"),
        sort=SortField(sort.removeprefix("-")) if sort else None,
        descending=sort.startswith("-"),
    )
    return found if found != RolloutSearch() else None


def _metadata_items(text: str | None) -> tuple[str, ...]:
    try:
        given = request_bodies.load_json(text.encode()) if text is not None else {}
        found = [task_metadata.item(name, value) for name, value in given.items()]
    except (ValueError, AttributeError):
        found = [None]
    if None in found or len(found) > task_metadata.MAX_ITEMS:
        raise BadRequest(
            'metadata must be a JSON object of texts, numbers, true, false or null, such as {"difficulty": "hard"}'
        )
    return tuple(item for item in found if item is not None)

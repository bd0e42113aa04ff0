"""Routes of VeRL-Tool's tool server."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pydantic
from aiohttp import web

from rollyard.bridges.listener import answer, json_object
from rollyard.bridges.verl_tool.actions import action_of, observation_of
from rollyard.bridges.verl_tool.trajectory_sandboxes import TrajectorySandboxes
from rollyard.core.errors import Invalid, SandboxError
from rollyard.kinds.schema.validation import problems_of

Observation = tuple[str | dict[str, Any], bool, bool]
"""Observation, whether the trajectory is done, whether the action was valid."""


class Actions(pydantic.BaseModel):
    """Body of `POST /get_observation`."""

    trajectory_ids: list[str] = pydantic.Field(min_length=1)
    actions: list[str]
    extra_fields: list[dict[str, Any] | None] | None = None
    finish: list[bool] | None = None

    @pydantic.model_validator(mode="after")
    def _one_each(self) -> Self:
        count = len(self.trajectory_ids)
        for name in ("actions", "extra_fields", "finish"):
            if (given := getattr(self, name)) is not None and len(given) != count:
                raise ValueError(f"`{name}` must have {count} entries, as `trajectory_ids` has")
        return self

    def finishes(self, i: int) -> bool:
        extra = (self.extra_fields[i] if self.extra_fields else None) or {}
        return bool(extra.get("finish", self.finish[i] if self.finish else False))


class VerlToolBridge:
    """Runs actions in sandboxes. VeRL-Tool samples, and keeps the trajectories."""

    def __init__(self, sandboxes: TrajectorySandboxes, seconds: float) -> None:
        """`seconds`: time limit of one action."""
        self._sandboxes, self._seconds = sandboxes, seconds

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/get_observation", self._get_observation), web.get("/health", self._health)]

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy", "tools": ["python", "bash"], "sandboxes": len(self._sandboxes)})

    async def _get_observation(self, request: web.Request) -> web.StreamResponse:
        given = _actions(await json_object(request))
        each = enumerate(zip(given.trajectory_ids, given.actions, strict=True))
        observed = [self._observe(id, text, given.finishes(i)) for i, (id, text) in each]
        done = await asyncio.gather(*observed, return_exceptions=True)
        if failed := [found for found in done if isinstance(found, BaseException)]:
            raise failed[0]
        observations, dones, valids = zip(*(found for found in done if isinstance(found, tuple)), strict=True)
        return await answer(request, {"observations": observations, "dones": dones, "valids": valids})

    async def _observe(self, trajectory: str, text: str, finish: bool) -> Observation:
        if finish:
            await self._sandboxes.finish(trajectory)
            return "", True, True
        action = action_of(text)
        if action is None:
            return {"obs": "", "invalid_reason": "the text has no block of python or bash"}, False, False
        try:
            async with self._sandboxes.use(trajectory) as sandbox:
                run = sandbox.ipython if action.tool == "python" else sandbox.bash
                done = await run(action.code, self._seconds)
        except SandboxError as error:
            return {"obs": "", "error": str(error)}, True, False
        late = [f"Execution time out after {self._seconds:g} seconds"] if done.timed_out else []
        output = "\n".join([done.output.rstrip("\n"), *done.notes, *late])
        return observation_of(text, action.tool, output), False, True


def _actions(body: dict[str, Any]) -> Actions:
    """Parse a body. Raises Invalid."""
    try:
        return Actions.model_validate(body)
    except pydantic.ValidationError as error:
        raise Invalid("; ".join(map(str, problems_of(Actions, error)))) from None

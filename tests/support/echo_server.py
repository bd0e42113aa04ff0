"""A server of OpenEnv with an environment of three turns. It runs with OpenEnv's Python, and prints its URL."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Heard(Observation):
    response: str


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id="", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Heard:
        self._state = State(episode_id=episode_id or "", step_count=0)
        return Heard(response=f"What is {seed} + 1?", done=False, reward=None)

    def step(self, action: Say, timeout_s: float | None = None, **more: Any) -> Heard:
        self._state.step_count += 1
        done = self._state.step_count == 3
        return Heard(response=f"What is {self._state.step_count} + 1?", done=done, reward=len(action.message) / 64)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Echo, Say, Heard, max_concurrent_envs=4)
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])

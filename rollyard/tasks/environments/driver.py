"""The program of an environment's process: it makes one environment with `reset` and `step`, and calls them.

The program runs with the Python in which the environment is installed (3.8 or later), so it imports no module of
Rollyard. One environment has one process, because GEM and others seed the random numbers of the whole process.

Each line on standard input is a JSON object. The first is `{"framework", "env", "arguments", "seed"}`. Each further line is
`{"action": TEXT}`. Each line gets one line as answer: `{"text", "reward", "done", "role"}`, or `{"error"}` if the
environment raised an exception. The process ends when its standard input ends.

The first answer has also `messages`, with which the environment opens, and `saves`: whether the environment has methods
`state` and `restore`. Then a line may also be `{"save": true}`, with the answer `{"state"}`, or `{"restore": STATE}`.

With a port as argument, the lines go over a connection to this port of 127.0.0.1, and modules of the working directory can
be imported.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import json
import math
import os
import signal
import socket
import sys
import traceback
from typing import Any, TextIO

MAX_TEXT_CHARS = 1 << 20
MAX_STATE_CHARS = 1 << 19
"""The opening messages are saved with the state, and are written as JSON once more."""
ADAPTED = ("textarena", "verifiers")
"""Frameworks whose environments a module beside this file makes."""
PR_SET_PDEATHSIG = 1


def main(*ports: str) -> None:
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # a module beside this file must not hide one of the environment's
    if ports:
        sys.path.insert(0, os.getcwd())
        connection = socket.create_connection(("127.0.0.1", int(ports[0])))
        questions: TextIO = connection.makefile("r")
        answers: TextIO = connection.makefile("w")
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        questions, answers = sys.stdin, os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # output printed by an environment must not be read as an answer
    environment: Any = None
    for line in questions:
        asked = json.loads(line)
        try:
            if environment is None:
                environment = make(asked["framework"], asked["env"], asked["arguments"])
                found = opening(environment, asked["seed"])
            elif "save" in asked:
                found = saved(environment)
            elif "restore" in asked:
                called("restore", environment.restore(asked["restore"]))
                found = {}
            else:
                found = step(environment, asked["action"])
            answer = json.dumps(found)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            answer = json.dumps({"error": describe(error)})
        print(answer, file=answers, flush=True)


def make(framework: str, env: str, arguments: dict[str, Any]) -> Any:
    if framework == "gem":
        return importlib.import_module("gem").make(env, **arguments)
    if framework in ADAPTED:
        return adapter(framework).make(env, **arguments)
    module, _, name = env.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found(**arguments)  # type: ignore[operator]


def adapter(framework: str) -> Any:
    """Load the module beside this file that makes environments of a framework."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{framework}_adapter.py")
    spec = importlib.util.spec_from_file_location(f"{framework}_adapter", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def opening(environment: Any, seed: int | None) -> dict[str, Any]:
    """Reset the environment. `reset` returns the observation, or (observation, info)."""
    found = called("reset", environment.reset() if seed is None else environment.reset(seed=seed))
    observation, info = found if isinstance(found, tuple) else (found, {})
    first = message(observation, info, reward=None, done=False)
    saves = all(callable(getattr(environment, name, None)) for name in ("state", "restore"))
    return {**first, "messages": getattr(environment, "opening_messages", None), "saves": saves}


def saved(environment: Any) -> dict[str, Any]:
    """Return the environment's state, which can be written as JSON."""
    found = called("state", environment.state())
    length = len(json.dumps(found))
    if length > MAX_STATE_CHARS:
        raise ValueError(f"state() has {length} characters as JSON; {MAX_STATE_CHARS} are allowed")
    return {"state": found}


def step(environment: Any, action: str) -> dict[str, Any]:
    """Pass an action on. `step` returns five values as in Gymnasium, or four as in the older Gym."""
    found = called("step", environment.step(action))
    if not isinstance(found, tuple) or len(found) not in (4, 5):
        raise TypeError(f"step() must return (observation, reward, terminated, truncated, info), not {found!r:.200}")
    observation, reward, info = found[0], None if found[1] is None else float(found[1]), found[-1]
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"step() returned the reward {reward}; a reward must be a finite number, or None")
    return message(observation, info, reward, any(map(bool, found[2:-1])))


def called(name: str, found: Any) -> Any:
    """Return what a method returned. Raises TypeError for a coroutine, which would be shown to the model as an object."""
    if inspect.isawaitable(found):
        raise TypeError(f"{name}() must be an ordinary method, without `async`")
    return found


def message(observation: Any, info: Any, reward: float | None, done: bool) -> dict[str, Any]:
    """Make the answer. GEM puts text around an observation into `info`, and marks results of its own tools there."""
    text = observation if isinstance(observation, str) else json.dumps(observation, default=str)
    info = info if isinstance(info, dict) else {}
    if not done:
        text = "\n".join(str(part).rstrip("\n") for part in (info.get("prefix"), text, info.get("suffix")) if part)
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"the observation has {len(text)} characters; {MAX_TEXT_CHARS} are allowed")
    return {"text": text, "reward": reward, "done": done, "role": "tool" if info.get("use_tool") else "user"}


def describe(error: BaseException) -> str:
    """Return type, message and place of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    remedy = (
        f"; install it for {sys.executable}, or name another `python`" if isinstance(error, ModuleNotFoundError) else ""
    )
    return f"{type(error).__name__}: {str(error)[:2000]}{remedy}{where}"


if __name__ == "__main__":
    main(*sys.argv[1:])

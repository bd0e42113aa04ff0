"""Mistakes of a foreign task handler: each ends as HandlerFailed with the handler's own line."""

from __future__ import annotations

import asyncio
import inspect
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest

from rollyard.core.errors import HandlerFailed, Invalid, NodeFault, SandboxLost, TaskError
from rollyard.kinds.rollout import MAX_NOTES_CHARS, Stage
from rollyard.kinds.task import Task
from rollyard.node.failure_status import failed_outcome
from rollyard.tasks import installed_handlers
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.installed_handlers import load_handlers
from rollyard.trajectory import Turn

TASK, SANDBOX = Task(kind="quiz"), cast(Any, None)


class Handler:
    """Does what is asked of it; each test makes one call of it go wrong."""

    eval_needs_sandbox = False

    def __init__(self, **wrong: Any) -> None:
        self._wrong = wrong

    def _answer(self, call: str, good: Any) -> Any:
        wrong = self._wrong.get(call, good)
        return wrong() if callable(wrong) else wrong

    def image(self, task: Task) -> Any:
        return self._answer("image", None)

    def tools(self, task: Task) -> Any:
        return self._answer("tools", ["bash"])

    def prompt(self, task: Task) -> Any:
        return self._answer("prompt", [{"role": "user", "content": "?"}])

    async def init(self, task: Task, sandbox: Any) -> Any:
        return self._answer("init", None)

    def restore_rules(self, task: Task) -> Any:
        return self._answer("restore_rules", None)

    def collect_seconds(self, task: Task) -> Any:
        return self._answer("collect_seconds", 1)

    async def solve(self, task: Task, sandbox: Any) -> Any:
        return self._answer("solve", None)

    async def collect(self, task: Task, sandbox: Any) -> Any:
        return self._answer("collect", {"a": "b", "raw": b"\xff"})

    async def evaluate(self, task: Task, evaluation: Any) -> Any:
        return self._answer("evaluate", Score(1.0))


class Leaving(Handler):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class BaseOfItsOwn(BaseException):
    """As the panics of extension modules are."""


class Cursed(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("looked at")


CALLS: dict[str, Callable[[GuardedHandler], Any]] = {
    "image": lambda h: h.check_image(TASK),
    "tools": lambda h: h.tools(TASK),
    "prompt": lambda h: h.prompt(TASK),
    "init": lambda h: h.init(TASK, SANDBOX),
    "restore_rules": lambda h: h.restore_rules(TASK),
    "collect_seconds": lambda h: h.collect_seconds(TASK),
    "solve": lambda h: h.solve(TASK, SANDBOX),
    "collect": lambda h: h.collect(TASK, SANDBOX),
    "evaluate": lambda h: h.evaluate(TASK, Evaluation({}, [], 1.0)),
}


async def call(name: str, **wrong: Any) -> Any:
    found = CALLS[name](GuardedHandler("quiz", Handler(**wrong)))
    return await found if inspect.isawaitable(found) else found


def raising(error: BaseException) -> Callable[[], None]:
    def go() -> None:
        raise error

    return go


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_gives_what_the_handler_gives(name: str) -> None:
    assert await call(name) == await call(name, **{name: await call(name)})


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "error",
    [
        KeyError("topic"), RuntimeError("no"), OSError(5, "x"), TimeoutError(), SystemExit(3), asyncio.CancelledError(),
        KeyboardInterrupt(), GeneratorExit(), BaseOfItsOwn("mine"), BaseExceptionGroup("some", [KeyboardInterrupt()]),
    ],
)  # fmt: skip
async def test_an_exception_of_its_own_is_told_with_type_message_and_line(name: str, error: BaseException) -> None:
    line = raising.__code__.co_firstlineno + 2
    with pytest.raises(HandlerFailed) as found:
        await call(name, **{name: raising(error)})
    told = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
    where = "" if told is not error else f" ({__file__}:{line})"
    expected = f"{name}() of task kind 'quiz' raised {type(told).__name__}: {told}{where}"
    assert str(found.value) == expected


async def test_an_exception_without_a_message_is_told_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise BaseOfItsOwn

    with pytest.raises(HandlerFailed, match=r"raised Mute: \(its message raises BaseOfItsOwn\)"):
        await call("collect", collect=raising(Mute()))


@pytest.mark.parametrize("message", ["half a pair: \udc00", "x" * 10_000_000])
async def test_whatever_a_handler_says_can_be_told_and_stored(message: str) -> None:
    """The stored error is short and valid text, and begins as the handler's message does; for a TaskError too."""
    for error in (ValueError(message), TaskError(message)):
        with pytest.raises(TaskError) as found:
            await call("evaluate", evaluate=raising(error))
        outcome = failed_outcome(None, Stage.EVAL, found.value, "node")
        assert outcome.error is not None
        assert 0 < len(outcome.model_dump_json().encode()) < 50_000
        assert message[:10] in outcome.error.message


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tools", ["bash", "browser"]), ("tools", "bash"), ("tools", None), ("prompt", "?"), ("prompt", []),
        ("prompt", [{"content": "?"}]), ("prompt", [{"role": "user", "content": "\ud800"}]),
        ("prompt", [{"role": "user", "content": b"raw"}]),
        ("restore_rules", "/tests"), ("collect_seconds", "1"), ("collect_seconds", float("inf")),
        ("solve", 42), ("solve", "\ud800"), ("collect", b"raw"),
        ("collect", {"a": bytearray(b"raw")}), ("collect", {"a": "\ud800"}),
        ("evaluate", 1.0), ("evaluate", Score(float("nan"))), ("evaluate", Score(float("inf"))),
        ("evaluate", Score(cast(Any, "1"))), ("evaluate", Score(cast(Any, None))),
        ("evaluate", Score(1.0, {"m": float("nan")})), ("evaluate", Score(1.0, cast(Any, [1]))),
        ("evaluate", Score(10**400)), ("evaluate", Score(cast(Any, Decimal("sNaN")))), ("evaluate", Score(1.0, {"m": 10**400})),
        ("evaluate", Score(1.0, {}, "why")), ("evaluate", Score(1.0, {}, cast(Any, [1]))),
        ("evaluate", Score(1.0, parts={"style": float("inf")})), ("evaluate", Score(1.0, parts=cast(Any, [1]))),
        ("evaluate", Score(1.0, {"\ud800": 1.0})), ("evaluate", Score(1.0, {f"metric{i}": 1.0 for i in range(5_000)})),
    ],
)  # fmt: skip
async def test_an_answer_of_the_wrong_shape_is_told_with_the_right_one(name: str, wrong: Any) -> None:
    with pytest.raises(HandlerFailed, match=rf"{name}\(\) of task kind 'quiz' must return .*, but returned "):
        await call(name, **{name: wrong})


async def test_a_handler_cannot_name_another_image_than_the_tasks_field() -> None:
    task = Task.model_validate({"kind": "quiz", "image": "docker://a/b"})
    GuardedHandler("quiz", Handler(image="docker://a/b")).check_image(task)
    for named in (None, "docker://a/c", 5):
        with pytest.raises(TaskError, match="write the image into the task's field `image`"):
            GuardedHandler("quiz", Handler(image=named)).check_image(task)


@pytest.mark.parametrize(
    "error", [SandboxLost("gone"), NodeFault("disk"), TaskError("no such task"), Invalid("task.x: no")]
)
async def test_our_own_errors_keep_their_meaning_alone_and_in_a_task_group(error: Exception) -> None:
    for raised in (error, ExceptionGroup("tasks", [ValueError("besides"), ExceptionGroup("inner", [error])])):
        with pytest.raises(type(error)) as found:
            await call("collect", collect=raising(raised))
        assert found.value is error


@pytest.mark.parametrize(("name", "wrong"), [("collect", Cursed(a="b")), ("evaluate", Score(1.0, Cursed(a=1.0)))])
async def test_an_answer_that_fails_when_it_is_looked_at_is_the_handlers_too(name: str, wrong: Any) -> None:
    with pytest.raises(HandlerFailed, match=rf"{name}\(\) of task kind 'quiz' raised RuntimeError: looked at"):
        await call(name, **{name: wrong})


async def test_a_kind_without_reference_solutions_says_how_to_have_them() -> None:
    class Unsolved(Handler):
        solve: Any = None

    with pytest.raises(TaskError, match="give its handler a method `async def solve"):
        await GuardedHandler("quiz", Unsolved()).solve(TASK, SANDBOX)


async def test_a_score_keeps_the_parts_of_its_reward() -> None:
    assert (await call("evaluate", evaluate=Score(1.0, parts={"tests": 1, "style": 0.5}))).parts == {
        "tests": 1.0,
        "style": 0.5,
    }


async def test_notes_are_cut_to_their_limit_and_made_storable() -> None:
    found = await call("evaluate", evaluate=Score(0.0, {}, ["half \ud800", "x" * 5_000, "more"]))
    assert found.notes[0] == "half \\ud800"
    assert found.notes[1].endswith("x…")
    assert len(found.notes) == 2
    assert sum(map(len, found.notes)) == MAX_NOTES_CHARS


async def test_what_evaluate_does_to_the_turns_does_not_reach_the_trajectory() -> None:
    class Meddling(Handler):
        async def evaluate(self, task: Task, evaluation: Any) -> Any:
            evaluation.turns[0].tool_results.append("\ud800")
            evaluation.turns[0].tool_calls[0]["arguments"] = object()
            evaluation.turns.append(None)
            return Score(1.0)

    call = {"name": "bash", "arguments": {"command": "true"}}
    turns = [Turn(segment=0, prompt_length=1, response_length=1, text="", finish_reason="stop", tool_calls=[call])]
    before = [turn.model_dump_json() for turn in turns]
    await GuardedHandler("quiz", Meddling()).evaluate(TASK, Evaluation({}, turns, 1.0))
    assert [turn.model_dump_json() for turn in turns] == before


async def test_a_cancellation_from_outside_stays_one() -> None:
    class Slow(Handler):
        async def collect(self, task: Task, sandbox: Any) -> Any:
            await asyncio.Event().wait()

    running = asyncio.create_task(GuardedHandler("quiz", Slow()).collect(TASK, SANDBOX))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_plug_in_that_cannot_be_loaded_takes_away_its_own_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = types.ModuleType("empty_plug_in")
    empty.__dict__["NoHandler"] = object
    monkeypatch.setitem(sys.modules, "empty_plug_in", empty)
    given = {
        "good": f"{__name__}:Handler",
        "absent": "no_such_package:Handler",
        "nameless": "empty_plug_in:Handler",
        "unlike": "empty_plug_in:NoHandler",
        "leaving": f"{__name__}:Leaving",
    }
    points = [EntryPoint(kind, value, "rollyard.tasks") for kind, value in given.items()]
    monkeypatch.setattr(installed_handlers, "entry_points", lambda group: points)
    found = load_handlers()
    assert set(found.loaded) == {"good"}
    assert set(found.failed) == {"absent", "nameless", "unlike", "leaving"}
    assert found.failed["absent"].startswith("ModuleNotFoundError: No module named 'no_such_package'")
    assert "AttributeError" in found.failed["nameless"]
    assert "is not a task handler: it lacks tools, prompt, init, collect, evaluate" in found.failed["unlike"]


async def test_what_handlers_hold_is_let_go_of_though_one_of_them_fails_at_it(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Holds(Handler):
        async def close(self) -> None:
            closed.append("holds")

    class Fails(Handler):
        async def close(self) -> None:
            raise KeyError("lost")

    class Misses(Handler):
        async def close(self) -> None:
            raise SandboxLost("gone")

    kinds = {"fails": Fails(), "misses": Misses(), "plain": Handler(), "holds": Holds()}
    await installed_handlers.Handlers({kind: GuardedHandler(kind, made) for kind, made in kinds.items()}, {}).close()
    assert closed == ["holds"]
    for kind in ("fails", "misses"):
        assert f"the handler of task kind {kind!r} failed to close" in caplog.text

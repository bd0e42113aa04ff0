"""The only module that calls task handlers. It checks their exceptions and return values. It is one file, so that every call
of a handler goes by the same checks.

A task handler of a plug-in is foreign code. If a handler raises an exception that is not in OWN_ERRORS, or returns a
wrong value, the rollout ends Failed. For an exception, the error names the line in the handler. Such a failure is never
an infrastructure fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import math
import re
import reprlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rollyard.core.errors import (
    EndpointError,
    HandlerFailed,
    Invalid,
    NodeFault,
    RollyardError,
    SandboxBroken,
    SandboxError,
    SandboxStartFailed,
    TaskError,
)
from rollyard.kinds.rollout import MAX_NOTES_CHARS
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import RestoreRules
from rollyard.tasks.base import (
    Environment,
    Evaluation,
    Handler,
    LoopAgent,
    Message,
    Reply,
    RoleModels,
    SavableEnvironment,
    Score,
    sum_of_rewards,
)
from rollyard.tasks.json_schema import schema_of
from rollyard.tasks.own_tools import SUBMIT, McpServer, OfferedTool, ProgramTool, Tool, ToolResult
from rollyard.tasks.tool_results import shorten
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.trajectory import Artifact, Turn

log = logging.getLogger(__name__)

OWN_ERRORS = (SandboxError, SandboxBroken, NodeFault, EndpointError, TaskError, Invalid)
"""Errors that keep their meaning when a handler raises them."""
METHODS = ("tools", "prompt", "init", "collect", "evaluate")
MESSAGES = "a list of messages such as {'role': 'user', 'content': '...'}"
MAX_MESSAGE_CHARS = 2000
MAX_METRICS_CHARS = 8000
"""Limit for the metrics, and for the parts, which are stored twice: in the rollout's record and in the trajectory."""
TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
MAX_STATE_CHARS = 1 << 20
"""Greatest length of the saved state of an environment."""
CLOSE_SECONDS = 5.0
"""Time limit for the `close` of an environment."""


class _Guarded:
    """Foreign code of one task kind, whose exceptions and return values are checked."""

    def __init__(self, kind: str, code: object) -> None:
        self._kind = kind
        self._module = type(code).__module__

    @contextlib.contextmanager
    def _guard(self, call: str, models: RoleModels | None = None) -> Iterator[None]:
        """`models`: models whose faults end the call, also if the handler has caught them."""
        try:
            yield
        # Every BaseException is caught. A KeyboardInterrupt raised by a handler would end the node agent. Any other
        # BaseException that is no Exception would end the rollout's task without handing back the lease.
        except BaseException as raised:
            task = asyncio.current_task()
            if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            fault = models.take_fault() if models is not None else None
            error = fault or first_cause(raised)
            if fault is not None or isinstance(error, OWN_ERRORS):
                raise error from None
            what = with_source_line(error, self._module)
            raise HandlerFailed(f"{call}() of task kind {self._kind!r} raised {what}") from raised
        if models is not None and (fault := models.take_fault()) is not None:
            raise fault

    def _check(self, call: str, found: Any, right: bool, expected: str) -> None:
        if not right:
            shown = f"{call}() of task kind {self._kind!r} must return {expected}, but returned {reprlib.repr(found)}"
            raise HandlerFailed(shown)


class GuardedEnvironment(_Guarded):
    """A wrapper around an environment, as GuardedHandler is around a handler."""

    def __init__(self, kind: str, environment: Environment, models: RoleModels | None = None) -> None:
        super().__init__(kind, environment)
        self._environment = environment
        self._models = models
        self.opening: Sequence[Message] = ()
        with self._guard("environment"):
            self._read_opening()
            self.every_turn = bool(getattr(environment, "every_turn", False))
            offers = all(callable(getattr(environment, name, None)) for name in ("state", "restore"))
            self.saves = offers and bool(getattr(environment, "saves", True))

    def _read_opening(self) -> None:
        opening = getattr(self._environment, "opening", ())
        self._check("environment", opening, are_messages(opening), f"an environment whose `opening` is {MESSAGES}")
        self.opening = opening

    async def reply(self, turn: Turn) -> Reply | None:
        with self._guard("reply", self._models):
            reply = await self._environment.reply(turn.model_copy(deep=True))
            right = reply is None or (
                isinstance(reply, Reply)
                and (reply.text is None or _text(reply.text))
                and (reply.reward is None or _number(reply.reward))
                and reply.role in ("user", "tool")
            )
            self._check(
                "reply",
                reply,
                right,
                "None, or a Reply whose text is None or a text, and whose reward is None or a finite number",
            )
            if reply is None or reply.reward is None:
                return reply
            return replace(reply, reward=float(reply.reward))

    async def state(self) -> str:
        """Return the environment's state. Raises HandlerFailed also if it is too long."""
        with self._guard("state", self._models):
            found = await cast(SavableEnvironment, self._environment).state()
            right = _text(found) and len(found) <= MAX_STATE_CHARS
            self._check("state", found, right, f"a text of at most {MAX_STATE_CHARS} characters")
        return found

    async def restore(self, state: str) -> None:
        """Put the environment into this state."""
        with self._guard("restore", self._models):
            await cast(SavableEnvironment, self._environment).restore(state)
            self._read_opening()

    async def close(self) -> None:
        """Close the environment. Errors and time-outs are logged, because the rollout's result does not depend on them."""
        try:
            with self._guard("close"):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._environment.close()
        except RollyardError as error:
            log.warning("an environment of task kind %r failed to close: %s", self._kind, error)


class GuardedHandler(_Guarded):
    """A wrapper around a task handler. Callers use the wrapper and never the handler itself. Each call raises
    HandlerFailed for an error that is the handler's fault."""

    def __init__(self, kind: str, handler: Handler) -> None:
        """Raises TypeError if the object is not a handler."""
        lacking = [name for name in METHODS if not callable(getattr(handler, name, None))]
        if not isinstance(getattr(handler, "eval_needs_sandbox", None), bool):
            lacking.append("eval_needs_sandbox (True or False)")
        if lacking:
            raise TypeError(f"{type(handler).__name__} is not a task handler: it lacks {', '.join(lacking)}")
        self._agent_loop = getattr(handler, "agent_loop", None)
        if self._agent_loop is not None and hasattr(handler, "environment"):
            raise TypeError(
                f"{type(handler).__name__} has an agent_loop(), which drives its conversations alone: delete environment()"
            )
        super().__init__(kind, handler)
        self._handler = handler
        self._make_environment = getattr(handler, "environment", None)
        self._environment_takes_models = (
            self._make_environment is not None and len(inspect.signature(self._make_environment).parameters) > 2
        )
        self._from_snapshot = getattr(handler, "eval_from_snapshot", None)
        self._rules = getattr(handler, "restore_rules", None)
        self._collect_seconds = getattr(handler, "collect_seconds", None)
        self._probe = getattr(handler, "probe", None)
        self._solve = getattr(handler, "solve", None)
        self.eval_needs_sandbox = handler.eval_needs_sandbox

    async def close(self) -> None:
        """Call the handler's `close`, if it has one."""
        with self._guard("close"):
            if (close := getattr(self._handler, "close", None)) is not None:
                await close()

    def check_image(self, task: Task) -> None:
        """Raise TaskError if the handler has a method `image` that names another image than the task's field does."""
        if (image := getattr(self._handler, "image", None)) is None:
            return
        with self._guard("image"):
            if (named := image(task) or "") != task.image:
                raise TaskError(
                    f"image() of task kind {self._kind!r} names {reprlib.repr(named)}: write the image into the task's field "
                    "`image`, the only place that counts, and delete the method"
                )

    def eval_from_snapshot(self, task: Task) -> bool:
        """Return whether the sandbox of EVAL begins with all files that the sandbox of RUN has changed."""
        if self._from_snapshot is None or not self.eval_needs_sandbox:
            return False
        with self._guard("eval_from_snapshot"):
            wanted = self._from_snapshot(task)
            self._check("eval_from_snapshot", wanted, isinstance(wanted, bool), "True or False")
        return bool(wanted)

    def restore_rules(self, task: Task) -> RestoreRules | None:
        """Return which changes of RUN's sandbox are left out in that of EVAL; None: none are."""
        if self._rules is None:
            return None
        with self._guard("restore_rules"):
            rules = self._rules(task)
            self._check(
                "restore_rules", rules, rules is None or isinstance(rules, RestoreRules), "None, or RestoreRules"
            )
        return rules if isinstance(rules, RestoreRules) else None

    def collect_seconds(self, task: Task) -> float:
        """Return the time that `collect` needs beyond the one that it has."""
        if self._collect_seconds is None:
            return 0.0
        with self._guard("collect_seconds"):
            seconds = self._collect_seconds(task)
            self._check("collect_seconds", seconds, _number(seconds), "a finite number")
        return float(seconds)

    def tools(self, task: Task) -> list[OfferedTool]:
        """Return the tools. A built-in tool that is a function is returned as that function."""
        with self._guard("tools"):
            tools = self._handler.tools(task)
            names = ", ".join([*SCHEMAS, SUBMIT.name])
            right = _all_match(tools, lambda tool: _known(tool) or isinstance(tool, McpServer) or _own_tool(tool))
            self._check(
                "tools", tools, right, f"a list of {names}, or of tools with a name, a description and parameters"
            )
            for tool in tools:
                if isinstance(tool, Tool | ProgramTool):
                    _check_parameters(tool)
        return [SUBMIT if tool == SUBMIT.name else tool for tool in tools]

    async def call_tool(self, tool: Tool, sandbox: Sandbox, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool of the handler's own."""
        call = f"tool {tool.name}"
        with self._guard(call):
            found = await tool.call(sandbox, arguments)
            result = ToolResult(found) if isinstance(found, str) else found
            right = isinstance(result, ToolResult) and _text(result.text)
            self._check(call, found, right, "a text or a ToolResult")
            return replace(result, text=shorten(result.text), done=bool(result.done), failed=bool(result.failed))

    def prompt(self, task: Task) -> list[Message]:
        with self._guard("prompt"):
            prompt = self._handler.prompt(task)
            right = are_messages(prompt) and (bool(prompt) or self._make_environment is not None)
            self._check("prompt", prompt, right, MESSAGES)
        return prompt

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        with self._guard("init"):
            await self._handler.init(task, sandbox)

    async def environment(
        self, task: Task, sandbox: Sandbox, models: RoleModels | None = None
    ) -> GuardedEnvironment | None:
        """Make the environment of one attempt; None if the task has none. The caller must close the environment."""
        if self._make_environment is None:
            return None
        with self._guard("environment", models):
            more = (models,) if self._environment_takes_models else ()
            made = await self._make_environment(task, sandbox, *more)
        return None if made is None else GuardedEnvironment(self._kind, made, models)

    @property
    def is_resumable(self) -> bool:
        """Whether rollouts of this kind may go on elsewhere. Those with an environment may if it can be saved, which is known
        when it is made."""
        return not self.loop_differs

    @property
    def has_loop(self) -> bool:
        """Whether the handler has an agent loop of its own."""
        return self._agent_loop is not None

    @property
    def loop_differs(self) -> bool:
        """Whether the handler has a loop of its own that asks for other turns if it runs again."""
        return self.has_loop and not getattr(self._handler, "repeatable_loop", True)

    async def agent_loop(self, task: Task, sandbox: Sandbox, agent: LoopAgent) -> None:
        """Run the handler's own agent loop, if it has one."""
        if self._agent_loop is not None:
            with self._guard("agent_loop", agent.models):
                await self._agent_loop(task, sandbox, agent)

    async def solve(self, task: Task, sandbox: Sandbox) -> str | None:
        """Apply the reference solution in place of an agent. Return its answer in words; None if it has none. Raises TaskError
        if there is no reference solution."""
        if self._solve is None:
            raise TaskError(
                f"task kind {self._kind!r} has no reference solutions: give its handler a method `async def solve(self, task, "
                "sandbox)`"
            )
        with self._guard("solve"):
            answer = await self._solve(task, sandbox)
            self._check("solve", answer, answer is None or _text(answer), "None, or the text of an answer")
        return None if answer is None else str(answer)

    async def probe(self, task: Task, sandbox: Sandbox, seconds: float) -> None:
        """Ask whether `evaluate` can use the sandbox. Raises SandboxError or TaskError if not."""
        if self._probe is None:
            return await answers(sandbox, seconds)
        with self._guard("probe"):
            await self._probe(task, sandbox, seconds)

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        with self._guard("collect"):
            artifact = await self._handler.collect(task, sandbox)
            right = isinstance(artifact, dict) and all(
                _text(name) and (isinstance(part, bytes) or _text(part)) for name, part in artifact.items()
            )
            self._check("collect", artifact, right, "a dict of name -> text or bytes")
        return artifact

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        # the handler gets a copy, so that it cannot change the turns in the trajectory
        shown = replace(evaluation, turns=[turn.model_copy(deep=True) for turn in evaluation.turns])
        with self._guard("evaluate", evaluation.models):
            score = await self._handler.evaluate(task, shown)
            if score is None and self._make_environment is not None:
                score = Score(sum_of_rewards(evaluation.turns))
            self._check("evaluate", score, isinstance(score, Score), "a Score")
            self._check("evaluate", score.reward, _number(score.reward), "a Score whose reward is a finite number")
            metrics, parts = self._numbers("metrics", score.metrics), self._numbers("parts", score.parts)
            right = _all_match(score.notes, lambda note: isinstance(note, str))
            self._check("evaluate", score.notes, right, "a Score whose notes are a list of texts")
            return Score(float(score.reward), metrics, list(_cut(score.notes)), parts)

    def _numbers(self, field: str, found: Any) -> dict[str, float]:
        right = isinstance(found, Mapping) and all(_text(name) and _number(value) for name, value in found.items())
        self._check("evaluate", found, right, f"a Score whose {field} are name -> finite number")
        numbers = {name: float(value) for name, value in found.items()}
        expected = f"a Score whose {field} have {MAX_METRICS_CHARS} characters at most"
        self._check("evaluate", numbers, len(str(numbers)) <= MAX_METRICS_CHARS, expected)
        return numbers


def first_cause(error: BaseException) -> BaseException:
    """Return the first error of Rollyard in an exception group, or else the first error in the group. Return any other
    error unchanged."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, RollyardError)), causes[0])


def with_source_line(error: BaseException, module: str) -> str:
    """Format an error as `KeyError: 'topic' (/path/quiz.py:14)`.

    The line is the innermost line of the traceback that is in the module `module`, or else the innermost line of all.
    For a SyntaxError it is the line with the wrong syntax.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") == module]
    where = "".join(f" ({frame.f_code.co_filename}:{line})" for frame, line in (own or frames)[-1:])
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = f" ({error.filename}:{error.lineno})"
    try:
        message = str(error)[:MAX_MESSAGE_CHARS]
    except BaseException as another:  # noqa: BLE001 - str() may run foreign code too
        message = f"(its message raises {type(another).__name__})"
    return f"{type(error).__name__}: {message}{where}"


def _cut(notes: Sequence[str]) -> Iterator[str]:
    """Yield the notes that fit into `MAX_NOTES_CHARS`, and the beginning of the next one. Halves of surrogate pairs, which
    cannot be stored, are escaped."""
    left = MAX_NOTES_CHARS
    for note in notes:
        text = note[:left].encode(errors="backslashreplace").decode()
        if len(text) < len(note) or len(text) > left:
            yield text[: max(0, left - 1)] + "…"
            return
        yield text
        left -= len(text)


def _known(tool: Any) -> bool:
    return isinstance(tool, str) and (tool in SCHEMAS or tool == SUBMIT.name)


def _own_tool(tool: Any) -> bool:
    right = isinstance(tool, Tool | ProgramTool) and isinstance(tool.name, str) and _text(tool.description)
    return right and TOOL_NAME.fullmatch(tool.name) is not None


def _check_parameters(tool: Tool | ProgramTool) -> None:
    """Raise TaskError if the arguments of a tool cannot be checked."""
    try:
        if schema_of(tool.parameters).get("type") != "object":
            raise ValueError("it must have the type `object`")
    except ValueError as error:
        raise TaskError(f"the parameters of the tool {tool.name!r} cannot be used: {error}") from None


def are_messages(found: Any) -> bool:
    return _all_match(found, lambda m: isinstance(m, dict) and isinstance(m.get("role"), str) and _json(m))


def _all_match(found: Any, right: Any) -> bool:
    return isinstance(found, list | tuple) and all(right(one) for one in found)


def _number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def _text(value: Any) -> bool:
    """Return whether the value is text without surrogates. Text with surrogates cannot be stored."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _json(value: Any) -> bool:
    """Return whether the value is JSON that a chat template and a tokenizer can process."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() is not None
    except (TypeError, ValueError):
        return False


async def answers(sandbox: Sandbox, seconds: float) -> None:
    """Ask whether bash runs a command. Raises SandboxStartFailed if it does not in time."""
    done = await sandbox.bash("true", seconds)
    if done.timed_out or done.exit_code != 0:
        raise SandboxStartFailed(f"bash runs no command within {seconds:g} s: {done.output.strip()[-300:]}")

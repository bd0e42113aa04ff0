"""A lease's way to its upload, where that does not go as it should."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any, TypeVar, cast

import pytest

from rollyard.core.errors import NodeFault, SandboxLost, TaskError, TemplateUnusable, TooLarge
from rollyard.kinds.failure_table import ending_of
from rollyard.kinds.rollout import Status
from rollyard.kinds.rollout_pool import Stages
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import ImageReference
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.failure_status import why_nothing_sampled
from rollyard.node.lease_run import TERM_SECONDS, LeaseRun, NodeContext
from rollyard.node.sandbox_specs import SandboxSpecs
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Handler, Score
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.installed_handlers import Handlers
from rollyard.tasks.math import MathHandler
from rollyard.trajectory import Outcome, RunResult
from rollyard.wire.node import Lease, LeaseRef

LEASE = Lease.model_validate(
    {
        "namespace": "default", "id": "r", "fence": 1, "attempt": 1, "sample_index": 0, "agent": {}, "sampling": {},
        "budgets": {}, "task": {"kind": "math", "problem": "1+1", "answer": "2"},
    }
)  # fmt: skip


Run = TypeVar("Run", bound=LeaseRun)
HANDLERS = Handlers({"math": GuardedHandler("math", MathHandler())}, {})


class Full:
    """A server that takes no run of this size."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    async def run(self, ref: LeaseRef, result: RunResult) -> None:
        raise TooLarge("a result may have at most 268435456 bytes")

    async def result(self, ref: LeaseRef, outcome: Outcome) -> None:
        self.told.append(outcome)


class Ran(LeaseRun):
    async def _run(self, handler: Handler) -> RunResult:
        return RunResult(outcome=Outcome(status=Status.COMPLETED), artifact={})


async def test_a_run_above_the_limit_fails_and_is_not_repeated() -> None:
    uploads = Full()
    await work(Ran, uploads).run()
    (told,) = uploads.told
    assert told.status is Status.FAILED
    assert told.error is not None
    assert (told.error.reason, "at most 268435456 bytes" in told.error.message) == ("TaskError", True)


class Lost(LeaseRun):
    """Its sandbox dies in INIT."""

    async def _run(self, handler: Handler) -> RunResult:
        raise SandboxLost("sandbox s: its socket was closed")


class NoImages:
    default = None

    def pinned(self, image: ImageReference | None) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()


def work(kind: type[Run], uploads: Full, lease: Lease = LEASE) -> Run:
    nothing = cast(Any, None)
    node = NodeContext(
        pools=nothing,
        sandboxes=nothing,
        images=cast(Any, NoImages()),
        handlers=HANDLERS,
        uploads=cast(Any, uploads),
        templates=nothing,
        policy=nothing,
        role=nothing,
        sandbox=SandboxTemplate(),
        stages=Stages(),
        node="n",
        kept=nothing,
        end=AllocationEnd(),
    )
    return kind(node, lease, lambda: None)


async def test_a_sandbox_that_dies_with_its_job_is_no_attempts_fault() -> None:
    """TERM goes to all processes of a job: the node agent reads it a moment after its sandboxes have died."""
    uploads = Full()
    running = asyncio.create_task(work(Lost, uploads).run())
    done, _ = await asyncio.wait([running], timeout=TERM_SECONDS / 10)
    assert not done
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert uploads.told == []


async def test_a_lost_sandbox_is_told_as_what_it_is() -> None:
    uploads = Full()
    await work(Lost, uploads).run()
    (told,) = uploads.told
    assert told.error is not None
    assert (told.status, told.error.reason) == (Status.INFRA_FAILED, "SandboxLost")


class Untemplated(LeaseRun):
    """Its model's chat template will not do."""

    async def _run(self, handler: Handler) -> RunResult:
        raise TemplateUnusable("TemplateUnusable: the chat template is missing")


async def test_a_template_that_will_not_do_ends_a_rollout_at_once_with_its_name() -> None:
    uploads = Full()
    await work(Untemplated, uploads).run()
    (told,) = uploads.told
    assert told.error is not None
    assert (told.status, told.error.reason) == (Status.FAILED, "TemplateUnusable")


class Swallowed(LeaseRun):
    """A task group that is cancelled while one of its tasks fails raises the group, and the cancellation is gone."""

    async def _run(self, handler: Handler) -> RunResult:
        async def fails() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise TaskError("it was in the middle of something")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        except* TaskError:
            pass
        raise TaskError("and goes on")


async def test_what_was_stopped_uploads_nothing_whatever_came_of_it() -> None:
    uploads = Full()
    running = asyncio.create_task(work(Swallowed, uploads).run())
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert uploads.told == []


@pytest.mark.parametrize(
    ("overdue", "calls", "tokens", "status", "words"),
    [
        (False, 1, 0, Status.FAILED, "ended without a sampled token"),
        (True, 0, 0, Status.FAILED, "made no model call within RUN's budget of 60 s"),
        (True, 1, 0, Status.INFRA_FAILED, "no model server sent a token within RUN's budget of 60 s"),
        (True, 1, 300, Status.FAILED, "ended during the first turn, after 300 tokens"),
    ],
)
def test_why_nothing_was_sampled_and_whose_doing_it_is(
    overdue: bool, calls: int, tokens: int, status: Status, words: str
) -> None:
    error = why_nothing_sampled(overdue, calls, tokens, 60.0)
    assert (ending_of(error).status, words in str(error)) == (status, True)


class Unlucky:
    """A handler in whose EVAL the allocation's memory runs out."""

    eval_needs_sandbox = True

    async def evaluate(self, task: Task, evaluation: Any) -> Score:
        evaluation.sandbox.node_fault = "the memory of the allocation ran out"
        return Score(0.0)

    tools = prompt = init = collect = evaluate


class Started:
    """The one sandbox that is claimed."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def expect(self, spec: SandboxSpec) -> Started:
        return self

    async def claim(self, pinned: None) -> Sandbox:
        return self._sandbox


async def test_a_score_from_which_the_nodes_lack_of_memory_took_is_no_score() -> None:
    run = work(LeaseRun, Full())
    ran = RunResult(outcome=Outcome(status=Status.COMPLETED), artifact={})
    async with SandboxFactory(find_runtime("bubblewrap")) as sandboxes, contextlib.AsyncExitStack() as stack:
        sandbox = await sandboxes.start(SandboxSpec(None, Limits(1, 256 << 20, 16 << 20)))
        run._specs = SandboxSpecs(sandbox.spec, sandbox.spec, 60.0, 60.0)
        run._node = dataclasses.replace(run._node, sandboxes=cast(Any, Started(sandbox)))
        with pytest.raises(NodeFault, match="the memory of the allocation ran out"):
            await run._score(GuardedHandler("math", cast(Handler, Unlucky())), ran, 60, stack)

"""One lease, from INIT to the uploaded result.

The stages are in one file, because each continues what the one before has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rollyard.core.errors import (
    ContextExceeded,
    EndpointError,
    ImageUnavailable,
    Invalid,
    NodeFault,
    NotFound,
    NothingSampled,
    ResumeFailed,
    RoleModelAttacked,
    RollyardError,
    SandboxBroken,
    SandboxError,
    SnapshotUnusable,
    StageTimeout,
    TaskError,
    TemplateUnusable,
    TooLarge,
    ToolCallsUnreadable,
)
from rollyard.images.pinned_image import PinnedImage
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_pool import POLICY_ROLE, Stages
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.node.agent_run import AgentResult, CommandRun, LoopParts, LoopRun, restore
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.broken_sandbox import judge
from rollyard.node.check_run import run_check
from rollyard.node.eval_files import EvalFiles, check_image
from rollyard.node.failure_status import failed_outcome, why_nothing_sampled
from rollyard.node.handover import Handover
from rollyard.node.harness import Harness
from rollyard.node.image_pulls import ImagePulls, image_fault
from rollyard.node.kept_sandboxes import KeptSandboxes
from rollyard.node.lease_models import LeaseModels, RoleSampler
from rollyard.node.lease_sampler import LeaseSampler
from rollyard.node.own_loop import OwnLoopRun
from rollyard.node.own_tools import OwnTool, start_tools
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.run_snapshots import RunSnapshots
from rollyard.node.sandbox_specs import SandboxSpecs, sandbox_specs
from rollyard.node.stage_workers import StagePools
from rollyard.node.turn_saver import TurnSaver
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.warm_sandboxes import ExpectedSandbox, WarmSandboxes
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.tasks.installed_handlers import Handlers
from rollyard.tasks.own_tools import OfferedTool
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.template_cache import TemplateCache
from rollyard.trajectory import Artifact, Outcome, RunResult, Timings, Turn, sampled_tokens
from rollyard.wire.node import ImageFault, Lease, LeaseRef
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)

T = TypeVar("T")

TERM_SECONDS = 0.2
"""Seconds to wait for this process's own TERM before an infrastructure fault, such as a lost sandbox, is reported.

When a job ends, all its processes get TERM, and a sandbox may end before this process reads its own signal. If this
process reads TERM during the wait, the rollout is handed back, and the lost sandbox does not count as a failed attempt.
"""
HANDLER_TIME_SHARE = 0.8
"""Share of EVAL's time budget that the agent's work may use. When a solution hangs, this share ends before the
budget, so the handler can score the solution as a mistake of the agent. The end of the budget would be an infrastructure
fault."""
PROBE_SECONDS = 30.0
"""Seconds in which a sandbox must answer to its task kind's probe."""
FAILURES = (Invalid, TooLarge, SandboxError, TaskError, NodeFault, EndpointError, ContextExceeded)
"""Errors that end an attempt Failed or InfraFailed."""


@dataclass(frozen=True)
class NodeContext:
    """The objects that all rollouts of a node agent share."""

    pools: StagePools
    sandboxes: WarmSandboxes
    images: ImagePulls
    handlers: Handlers
    uploads: ResultUploads
    templates: TemplateCache
    policy: Callable[[Lease, ChatTemplate], LeaseSampler]
    role: Callable[[Lease, str], Awaitable[RoleSampler]]
    """Makes the sampler of a role that a task handler calls."""
    sandbox: SandboxTemplate
    stages: Stages
    node: str
    kept: KeptSandboxes
    end: AllocationEnd


class LeaseRun:
    """Takes one lease through the stages and uploads the outcome, unless the lease is cancelled, void or handed back."""

    def __init__(self, node: NodeContext, lease: Lease, stage_changed: Callable[[], None]) -> None:
        self._node = node
        self._lease = lease
        self._stage_changed = stage_changed
        self.stage = lease.stage
        self._timings: dict[str, float] = {}
        self._partial_outcome: Outcome | None = None
        self._endpoint: str | None = None
        self._for_eval: ExpectedSandbox | None = None
        self._eval_files = EvalFiles()
        self.sandbox: Sandbox | None = None
        """The rollout's present sandbox, which may have ended."""
        self._pinned: PinnedImage | None = None
        """The image of the present stage, if it is in the node's cache. The stage's sandboxes start from it."""
        self._pinned_for_eval: PinnedImage | None = None
        self._specs: SandboxSpecs
        self._looks: Counter[str] = Counter()
        self._models = LeaseModels(lease.roles, lambda role: node.role(lease, role), self.stage)
        self._offered: list[str | OwnTool] = []
        self._live_turns: Callable[[], Awaitable[list[Turn]]] | None = None
        self._harness: Harness | None = None
        self._handover = Handover(node.uploads, lease, lambda: self.ref, node.end)
        self.over = False
        """True if the work on the lease has ended, for whatever reason."""
        self._ran = asyncio.Event()
        """Set when the server has RUN's result, or nothing more comes."""

    async def turns(self) -> list[Turn]:
        """Return the turns of this attempt so far."""
        if self._partial_outcome is not None:
            return self._partial_outcome.turns
        return await self._live_turns() if self._live_turns is not None else []

    async def printed(self, position: int) -> tuple[str, int]:
        """Return what the attempt's command has printed after the first `position` bytes, and the number of bytes so far.
        Raises SandboxLost."""
        return await self._harness.printed(position) if self._harness is not None else ("", 0)

    @property
    def _output(self) -> str | None:
        return self._harness.output if self._harness is not None else None

    def note_look(self) -> None:
        """Count that somebody runs a program in the present sandbox. The outcome has the count as a metric."""
        if self.stage is not Stage.EVAL:
            self._handover.note_look()
        self._looks["looks_in_eval" if self.stage is Stage.EVAL else "looks"] += 1

    @property
    def can_leave(self) -> bool:
        """Whether another node agent can go on with the present work."""
        return self._handover.can_leave and self.stage is Stage.RUN

    async def suspend(self, grace: float, longest: float) -> None:
        """Do as `Handover.suspend`, if the rollout can leave. If the agent has ended, wait until the server has RUN's result:
        without it, the last turn would be sampled again."""
        if self.can_leave and await self._handover.suspend(grace, longest):
            await self._ran.wait()

    @property
    def ref(self) -> LeaseRef:
        lease = self._lease
        return LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence, stage=self.stage)

    async def run(self) -> None:
        """Run the lease to its end. Raises Fenced if the lease is void, and NoEndpoint, ImageUnavailable or AllocationEnds if
        the lease must be handed back."""
        try:
            outcome = await self._outcome()
        finally:
            self.over = True
            self._ran.set()
        if outcome.status is Status.INFRA_FAILED:
            await asyncio.sleep(TERM_SECONDS)
        task = asyncio.current_task()
        # a task group may lose a cancellation if one of its own tasks fails at the same time
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        outcome = evolve(outcome, role_calls=list(self._models.calls))
        await self._node.uploads.result(self.ref, outcome)
        log.info("%s", self._end_text(outcome))

    def _end_text(self, outcome: Outcome) -> str:
        """Describe how the lease ended, for the job's log, without any text of a model or an agent."""
        reward = "none" if outcome.reward is None else f"{outcome.reward:g}"
        why = f" ({outcome.error.reason})" if outcome.error is not None else ""
        spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in self._timings.items())
        turns = f"{len(outcome.turns)} turns, {sampled_tokens(outcome.segments)} sampled tokens"
        return f"rollout {self._lease.id}: {outcome.status}{why}, reward {reward}, {turns}, {spent}"

    async def _outcome(self) -> Outcome:
        try:
            handler = self._handler()
            handler.check_image(self._lease.task)
            self._specs = sandbox_specs(
                *(self._lease.task, handler, self._node.sandbox, self._node.stages, self._node.images.default)
            )
            async with contextlib.AsyncExitStack() as pins:
                await self._pin_images(handler, pins)
                return await self._stages_or_image_fault(handler)
        except ImageUnavailable:
            raise
        except (SandboxBroken, RoleModelAttacked) as error:
            return await self._scored_with_zero(error)
        except TemplateUnusable as error:
            return await self._failed(error)
        except (Invalid, TooLarge) as error:
            return await self._failed(TaskError(str(error)))
        except FAILURES as error:
            return await self._failed(error)
        finally:
            if self._for_eval is not None:
                self._for_eval.drop()
            self._eval_files.close()

    async def _pin_images(self, handler: GuardedHandler, pins: contextlib.AsyncExitStack) -> None:
        """Keep the images of the stages that are left on the node. EVAL's image is there before INIT, so that no agent works
        for an evaluation that has no image. Raises as `ImagePulls.pinned`."""
        images, specs, is_eval = self._node.images, self._specs, self.stage is Stage.EVAL
        if not is_eval:
            self._pinned = await pins.enter_async_context(images.pinned(specs.run.image))
        self._pinned_for_eval = self._pinned
        if handler.eval_needs_sandbox and (is_eval or specs.eval_has_own_image):
            self._pinned_for_eval = await pins.enter_async_context(images.pinned(specs.eval.image))

    def image_fault(self, error: ImageUnavailable) -> ImageFault:
        """Return the message to the server about an image that this lease needs."""
        own = self._specs.eval.image if self._specs.eval_has_own_image else None
        evaluator = own is not None and own.text == error.image
        default = not evaluator and not self._lease.task.image
        return evolve(image_fault(error, default=default), evaluator=evaluator)

    async def _stages_or_image_fault(self, handler: GuardedHandler) -> Outcome:
        """Run the stages that are left. Raises ImageUnavailable if they failed because somebody has deleted files of the image
        from the node's cache."""
        try:
            return await self._stages(handler)
        except (TaskError, SandboxError):
            if self._pinned is not None:
                await self._node.images.check_files(self._pinned)
            raise

    async def _stages(self, handler: GuardedHandler) -> Outcome:
        """Run the stages that are left. The image stays on the node meanwhile."""
        if self.stage is Stage.EVAL:
            run = await self._node.uploads.stored_run(self.ref)
            self._models.calls.extend(run.outcome.role_calls)
        else:
            run = await self._run(handler)
            await self._node.uploads.run(self.ref, run)
            self._ran.set()
        self._partial_outcome = run.outcome
        return await self._evaluated(handler, run)

    def _handler(self) -> GuardedHandler:
        handlers, kind = self._node.handlers, self._lease.task.kind
        if kind in handlers.failed:
            raise TaskError(f"the handler of task kind {kind!r} cannot be loaded here: {handlers.failed[kind]}")
        if kind not in handlers.loaded:
            raise TaskError(f"there is no handler for task kind {kind!r} on this node")
        return handlers.loaded[kind]

    async def _failed(self, error: RollyardError) -> Outcome:
        if (
            isinstance(error, TaskError)
            and self.sandbox is not None
            and (fault := await self._node_fault(self.sandbox))
        ):
            error = NodeFault(f"{fault}; then: {error}")
        failed = failed_outcome(self._partial_outcome, self.stage, error, self._node.node)
        return evolve(failed, timings=self._timings_now(), harness_output=self._output or failed.harness_output)

    async def _scored_with_zero(self, error: SandboxBroken | RoleModelAttacked) -> Outcome:
        """Return the outcome of a rollout whose agent has broken its own sandbox, or attacked a model that scores it."""
        ran = self._partial_outcome
        if ran is None and not self._lease.agent.calls_model:
            ran = Outcome(status=Status.COMPLETED, node=self._node.node)
        if ran is None:  # no token was sampled, so there is nothing to train on
            return await self._failed(NothingSampled(str(error)))
        metric = "broken_sandbox" if isinstance(error, SandboxBroken) else "attacked_model"
        metrics = {**ran.metrics, metric: 1.0, **self._looks}
        return evolve(ran, reward=0.0, metrics=metrics, notes=[str(error)], timings=self._timings_now())

    # INIT and RUN

    async def _run(self, handler: GuardedHandler) -> RunResult:
        """Run INIT and RUN. The sandbox is closed before this method returns. So no process of the agent is alive when
        EVAL runs the hidden tests."""
        if self._lease.agent.calls_model and POLICY_ROLE not in self._lease.endpoints:
            raise TaskError(
                f"the pool has no InferencePool for the role {POLICY_ROLE!r}, which agents sample from; add it to "
                "spec.inference"
            )
        await self._handover.load(handler, self._specs.run)
        while True:
            try:
                return await self._run_in_sandbox(handler)
            except ResumeFailed as error:
                self._handover.give_up(error)

    async def _run_in_sandbox(self, handler: GuardedHandler) -> RunResult:
        """Run INIT and RUN, or what is left of RUN. Raises ResumeFailed if the rest needs another sandbox."""
        calls_model, lease = self._lease.agent.calls_model, self._lease
        async with contextlib.AsyncExitStack() as stack:
            sandbox, environment = await self._init(handler, stack)
            model = await self._template(handler) if calls_model else None
            async with self._stage_worker(Stage.RUN):
                if handler.eval_needs_sandbox and self._for_eval is None:
                    self._for_eval = self._node.sandboxes.expect(self._specs.eval)
                files = self._eval_files if handler.eval_from_snapshot(self._lease.task) else None
                snapshots = await stack.enter_async_context(
                    RunSnapshots(sandbox, self._node.uploads, self.ref, self._lease.agent, files)
                )
                if model is not None:
                    saving = self._handover.saving(sandbox, lease.endpoints[POLICY_ROLE].weights_version)
                    saver = await stack.enter_async_context(saving)
                    run = await self._agent(handler, sandbox, environment, *model, snapshots, saver)
                else:
                    run = await run_check(self._lease, handler, sandbox, self._budget(Stage.RUN))
                artifact = await self._artifact(handler, sandbox, run, snapshots)
            await snapshots.finish()
        outcome = self._partial_outcome = self._outcome_of_run(run)
        return RunResult(outcome=outcome, artifact=artifact)

    async def _template(self, handler: GuardedHandler) -> tuple[ChatTemplate, ToolProof]:
        """Load the template. Raises TemplateUnusable, and ToolCallsUnreadable if the task has tools and calls of them would not
        be read."""
        lease, endpoint = self._lease, self._lease.endpoints[POLICY_ROLE]
        parser = lease.agent.tool_parser or endpoint.tool_parser
        template = await self._node.templates.get(endpoint.tokenizer)
        proof = await self._node.templates.proof(endpoint.tokenizer, parser)
        if proof.refuses and lease.agent.command is None and handler.tools(lease.task):
            raise ToolCallsUnreadable(proof.message)
        return template, proof

    def _outcome_of_run(self, run: AgentResult) -> Outcome:
        return Outcome(
            status=Status.COMPLETED if run.status is Status.COMPLETED else Status.TRUNCATED,
            metrics={**run.metrics, **self._looks, **self._handover.metrics},
            segments=run.segments,
            turns=run.turns,
            timings=self._timings_now(),
            breaks=run.breaks,
            endpoint=self._endpoint,
            node=self._node.node,
            harness_output=self._output,
            cut_short=run.cut_short,
            role_calls=list(self._models.calls),
            resumptions=self._handover.resumptions,
        )

    async def _init(
        self, handler: GuardedHandler, stack: contextlib.AsyncExitStack
    ) -> tuple[Sandbox, GuardedEnvironment | None]:
        task, budget, saved = self._lease.task, self._budget(Stage.INIT), self._handover.saved
        async with self._stage_worker(Stage.INIT), self._limit(budget, f"INIT took more than {budget:g} s"):
            tools = _tools_to_prepare(handler.tools(task)) if self._lease.agent.type == "loop" else ["bash"]
            claimed = await self._node.sandboxes.claim(self._specs.run, tools, self._pinned)
            sandbox = await stack.enter_async_context(self._closed_or_kept(claimed))
            self.sandbox = sandbox
            if saved.snapshot is not None:
                await self._handover.restore_files(sandbox, saved.snapshot.size)
            elif self._lease.agent.fork_from is not None:
                await self._restore_fork(sandbox)
            else:
                await handler.init(task, sandbox)
            if self._lease.agent.command is None:
                self._offered = await start_tools(handler, handler.tools(task), sandbox, stack)
            environment = await handler.environment(task, sandbox, self._models)
            if environment is not None:
                stack.push_async_callback(environment.close)
                if saved.turns:
                    await restore(environment, saved.turns)
        if environment is not None and self._lease.agent.command is not None:
            raise TaskError(
                f"a task of kind {task.kind!r} has an environment, which replies to the built-in loop only; "
                "leave out `agent.command`"
            )
        if (environment is not None or handler.has_loop) and self._lease.agent.fork_from is not None:
            which = "a loop of its own" if handler.has_loop else "an environment"
            raise TaskError(
                f"a task of kind {task.kind!r} has {which}, whose state no snapshot has; leave out `agent.fork_from`"
            )
        return sandbox, environment

    async def _restore_fork(self, sandbox: Sandbox) -> None:
        """Give the sandbox the files after the turn from which the rollout goes on. They include what the task's handler
        wrote in INIT. Raises SnapshotUnusable."""
        about, archive = await self._fetch_fork(self._node.uploads.fork_snapshot)
        check_image(about.image, sandbox)
        await sandbox.restore(io.BytesIO(archive))

    async def _fetch_fork(self, fetch: Callable[[LeaseRef], Awaitable[T]]) -> T:
        try:
            return await fetch(self.ref)
        except (NotFound, Invalid) as error:
            raise SnapshotUnusable(str(error)) from None

    async def _agent(
        self,
        handler: GuardedHandler,
        sandbox: Sandbox,
        environment: GuardedEnvironment | None,
        template: ChatTemplate,
        tools: ToolProof,
        snapshots: RunSnapshots,
        saver: TurnSaver,
    ) -> AgentResult:
        """Run the agent, or what is left of its work. If RUN's budget runs out, the run is truncated. If no token was
        sampled, raises an error with the reason."""
        lease, policy, budget = self._lease, self._node.policy(self._lease, template), self._budget(Stage.RUN)

        async def turn_ended(turn: int) -> None:
            if sandbox.node_fault:  # the turns after it would not count
                raise NodeFault(f"during RUN: {sandbox.node_fault}")
            await snapshots.turn_ended(turn)

        agent: LoopRun | OwnLoopRun | CommandRun
        parts = LoopParts(lease, sandbox, template, self._offered)
        if lease.agent.command is not None:
            agent = CommandRun(lease, handler, sandbox, template, tools, policy, saver, self._node.end)
            self._harness = agent.harness
        elif handler.has_loop:
            agent = OwnLoopRun(handler, parts, policy, self._models, turn_ended)
        else:
            agent = LoopRun(handler, parts, environment, policy, self._models, turn_ended)
            if lease.agent.fork_from is not None:
                await agent.go_on_from(await self._fetch_fork(self._node.uploads.ancestors))
        self._live_turns = agent.turns
        try:
            await self._handover.go_on(agent, handler, environment, budget)
            ran = await agent.run(budget)
        except (SandboxBroken, RoleModelAttacked, SandboxError, TaskError, NodeFault, EndpointError):
            # The turns before the error are kept. They show what led to it.
            if not isinstance(agent, CommandRun) and await agent.turns():
                self._partial_outcome = self._outcome_of_run(await agent.result())
            raise
        if isinstance(agent, CommandRun) and agent.tools_refused and not sampled_tokens(ran.segments):
            raise ToolCallsUnreadable(tools.message)
        self._endpoint = policy.failover.endpoint.id
        self._partial_outcome = self._outcome_of_run(ran)
        if not sampled_tokens(ran.segments):
            raise why_nothing_sampled(ran.overdue, policy.turns_requested, policy.tokens_arrived, budget)
        return ran

    async def _artifact(
        self, handler: GuardedHandler, sandbox: Sandbox, run: AgentResult, snapshots: RunSnapshots
    ) -> Artifact:
        self._partial_outcome = self._outcome_of_run(run)
        await self._check_node(sandbox)
        if self._pinned is not None and handler.eval_from_snapshot(self._lease.task):
            # in a snapshot, a file that somebody has deleted from the image looks as if the agent had deleted it
            await self._node.images.check_files(self._pinned)
        budget = self._budget(Stage.INIT) + handler.collect_seconds(self._lease.task)
        async with self._limit(budget, f"collecting the artifact took more than {budget:g} s"):
            await snapshots.run_ended(len(run.turns))
            return await handler.collect(self._lease.task, sandbox)

    # EVAL

    async def _evaluated(self, handler: GuardedHandler, run: RunResult) -> Outcome:
        budget, self._pinned = self._budget(Stage.EVAL), self._pinned_for_eval
        async with self._stage_worker(Stage.EVAL):
            try:
                late = self._limit(budget, f"EVAL took more than {budget:g} s")
                async with contextlib.AsyncExitStack() as stack, late:
                    score = await self._score(handler, run, HANDLER_TIME_SHARE * budget, stack)
            except FAILURES as error:
                if not handler.eval_from_snapshot(self._lease.task):
                    raise
                raise await self._judged(handler, error) from None
        timings = evolve(run.outcome.timings, eval=self._timings["eval"])
        metrics = {**run.outcome.metrics, **score.metrics, **self._looks}
        scored = {"reward": score.reward, "parts": score.parts, "metrics": metrics, "notes": list(score.notes)}
        return evolve(run.outcome, **scored, timings=timings)

    async def _score(
        self, handler: GuardedHandler, run: RunResult, seconds: float, stack: contextlib.AsyncExitStack
    ) -> Score:
        """`stack` ends the sandbox, or keeps it. It sees also that the time is up."""
        task, evaluation = self._lease.task, Evaluation(run.artifact, run.outcome.turns, seconds, models=self._models)
        if not handler.eval_needs_sandbox:
            return await handler.evaluate(task, evaluation)
        if self._pinned is not None:  # else the start would wait until this rollout lets go of it
            await asyncio.to_thread(self._pinned.check)
        coming = self._for_eval or self._node.sandboxes.expect(self._specs.eval)
        fresh = self.sandbox = await stack.enter_async_context(self._closed_or_kept(await coming.claim(self._pinned)))
        if handler.eval_from_snapshot(task):
            await self._eval_files.restore(fresh, self._node.uploads, self.ref, handler.restore_rules(task))

        @contextlib.asynccontextmanager
        async def another(*, files: bool = True) -> AsyncIterator[Sandbox]:
            async with await self._node.sandboxes.claim(self._specs.eval, pinned=self._pinned) as sandbox:
                if files and handler.eval_from_snapshot(task):
                    await self._eval_files.restore(sandbox, self._node.uploads, self.ref, handler.restore_rules(task))
                yield sandbox
                await self._check_node(sandbox)

        score = await handler.evaluate(task, replace(evaluation, sandbox=fresh, another=another))
        await self._check_node(fresh)
        return score

    async def _judged(self, handler: GuardedHandler, error: RollyardError) -> RollyardError:
        """Return the error with which an EVAL ends that began with the agent's files."""
        spec, task = self._specs.eval, self._lease.task

        @contextlib.asynccontextmanager
        async def started(*, with_files: bool) -> AsyncIterator[Sandbox]:
            async with await self._node.sandboxes.claim(spec, pinned=self._pinned) as sandbox:
                self.sandbox = sandbox
                if with_files:
                    rules = handler.restore_rules(task)
                    await self._eval_files.restore(sandbox, self._node.uploads, self.ref, rules)
                yield sandbox

        async def probe(sandbox: Sandbox) -> None:
            await handler.probe(task, sandbox, min(PROBE_SECONDS, self._budget(Stage.EVAL) / 2))

        return await judge(error, lambda: started(with_files=False), lambda: started(with_files=True), probe)

    # helpers

    async def _check_node(self, sandbox: Sandbox) -> None:
        """Raise NodeFault or ImageUnavailable if what the sandbox's processes did may be the node's doing: it lacked something,
        or files that the sandbox shows were deleted."""
        if self._pinned is not None:
            await asyncio.to_thread(self._pinned.check)
        if fault := await self._node_fault(sandbox):
            raise NodeFault(fault)

    async def _node_fault(self, sandbox: Sandbox) -> str:
        if sandbox.node_fault:
            return f"during {self.stage}: {sandbox.node_fault}"
        path = await asyncio.to_thread(sandbox.lost_files)  # it may be in a network folder
        return f"{path} was deleted or replaced during {self.stage}, while a sandbox used it" if path else ""

    @contextlib.asynccontextmanager
    async def _closed_or_kept(self, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """Close the sandbox at the end of the block. If the attempt fails in the block, and the request asks for it, keep
        the sandbox instead."""
        kept, seconds = False, self._lease.budgets.keep_failed_seconds
        try:
            yield sandbox
        except FAILURES as error:
            if seconds is not None and not isinstance(error, ImageUnavailable):
                kept = self._node.kept.keep(self.ref, sandbox, seconds)
            raise
        finally:
            if not kept:
                await sandbox.close()

    def _budget(self, stage: Stage) -> float:
        """Return the time budget in seconds: the pool's, or the task's or the rollout's if that is shorter."""
        word = stage.value.lower()
        own = getattr(self._lease.budgets, f"{word}_seconds")
        pools: float = getattr(self._node.stages, word).timeout_seconds
        if stage is not Stage.INIT:
            pools = self._specs.eval_seconds if stage is Stage.EVAL else self._specs.run_seconds
        return min(pools, own) if own is not None else pools

    @contextlib.asynccontextmanager
    async def _stage_worker(self, stage: Stage) -> AsyncIterator[None]:
        """Wait for a stage worker of this stage, and hold it inside the block. The stage's time begins when the wait
        ends."""
        self.stage = self._models.stage = stage
        # A heartbeat now tells the server that this rollout waits, so that the server can give the stage more workers.
        self._stage_changed()
        async with self._node.pools[stage].worker():
            started = time.monotonic()
            try:
                yield
            finally:
                self._timings[stage.value.lower()] = round(time.monotonic() - started, 6)
                self._stage_changed()

    @staticmethod
    @contextlib.asynccontextmanager
    async def _limit(seconds: float, message: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise StageTimeout(message) from None

    def _timings_now(self) -> Timings:
        return Timings(**self._timings)


def _tools_to_prepare(tools: Sequence[OfferedTool]) -> list[str]:
    return [tool for tool in tools if isinstance(tool, str) and tool in ("bash", "ipython")]

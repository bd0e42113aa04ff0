"""Samples: one of each message with every field set: what `python -m tests.wire.record` writes down."""

from __future__ import annotations

from rollyard.kinds.engine_spec import Patience
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import AgentSpec, Budgets, ForkPoint, RolloutError, Sampling, Stage, Status
from rollyard.kinds.rollout_pool import RoleLimits, Stages
from rollyard.kinds.rollout_profile import RolloutProfile, TokenParts, ToolUse, TurnBand
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.kinds.sandbox_template import SandboxImages, SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.trajectory import Outcome, RoleCall, Segment, Timings, Turn
from rollyard.wire import node
from rollyard.wire.attach import (
    Acknowledge,
    AttachKind,
    EndInput,
    Exited,
    Ready,
    Refused,
    SendSignal,
    Start,
    WindowSize,
)
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import (
    EngineHeartbeat,
    EngineHello,
    EngineLoad,
    EngineOrders,
    EngineWelcome,
    WeightsReport,
    WeightsTarget,
)
from rollyard.wire.files import AllocationFile, EndpointFile
from rollyard.wire.node import (
    Attach,
    Cancel,
    CapacityRequest,
    Drain,
    Grant,
    HandBack,
    Heartbeat,
    Hello,
    ImageChanges,
    ImageFault,
    ImageStorage,
    KeptSandbox,
    KeptSandboxList,
    Lease,
    LeaseRef,
    NewEndpoint,
    RechooseEndpoint,
    Renewed,
    Resize,
    ResultHeader,
    SandboxCounts,
    SnapshotHeader,
    StoredTurns,
    ToolProofs,
    TurnsHeader,
    Welcome,
)
from rollyard.wire.tool_proof import TemplateProof, ToolProof

IDENTITY = Identity(
    allocation="swe-0",
    namespace="default",
    uid="5f1c",
    job_id="7",
    restart_count=1,
    instance="a1b2",
    node="n1",
    protocol=2,
)
REF = LeaseRef(namespace="default", id="r.0", fence=3, stage=Stage.RUN)
ENDPOINT = Endpoint(
    id="policy-0",
    url="https://n2:8000",
    token="shown-to-the-engine",
    model="policy",
    weights_version="v3",
    tokenizer="tokenizer",
    ca=False,
    patience=Patience(connect_seconds=5, first_token_seconds=100, idle_seconds=30),
    dialect="sglang",
    logprobs="processed",
    tool_parser="hermes",
    context=4096,
)
PROOF = ToolProof(status="False", reason="NoParser", message="no parser knows these calls", parser="mine")
LEASE = Lease(
    namespace="default",
    id="r.0",
    fence=3,
    stage=Stage.INIT,
    attempt=2,
    sample_index=1,
    task=Task.model_validate({"kind": "math", "question": "1 + 1", "answer": "2"}),
    agent=AgentSpec(
        type="command",
        command="agent",
        env={"A": "b"},
        sampling="harness",
        max_turns=3,
        tool_timeout_seconds=5.0,
        tool_parser="hermes",
        snapshots="last",
        resume="never",
    ),
    sampling=Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        seed=1,
        max_tokens=64,
        min_tokens=1,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias={3: 1.0},
        allowed_token_ids=[3, 4],
        bad_words=["bad"],
        stop=["END"],
        stop_token_ids=[2],
        logprobs="processed",
        extra={"watermarking": False},
    ),
    budgets=Budgets(init_seconds=1.0, run_seconds=2.0, eval_seconds=3.0, context_tokens=512, keep_failed_seconds=60.0),
    roles={"judge": RoleLimits(max_calls=3, max_tokens=1000, seconds=60.0, retries=2)},
    endpoints={"policy": ENDPOINT},
    resume=True,
    saved_turns=2,
    lost="Expired",
    lost_node="n1",
)
FORKED = LEASE.model_copy(
    update={"agent": AgentSpec(snapshots="every", fork_from=ForkPoint(rollout="r", turn=3)), "id": "r.1"}
)
"""Lease with the fields that only the built-in loop may have."""
TARGET = WeightsTarget(
    version="v3", mode="Pause", path="weights", adapter="adapter", checksum="sha256:1", attempt=2, transfer=True
)
ERROR = RolloutError(stage=Stage.RUN, reason="SandboxLost", message="the sandbox died")
RESUMPTION = Resumption(
    turn=2, reason="Expired", node="n1", snapshot=1, replayed=1, dropped=1, why="turn 3 was cut off", seconds=0.5
)
OUTCOME = Outcome(
    resumptions=[RESUMPTION],
    status=Status.COMPLETED,
    reward=1.0,
    harness_output="done",
    cut_short="RUN's budget of 60 s ended",
    role_calls=[
        RoleCall(
            role="judge",
            stage=Stage.EVAL,
            purpose="control",
            ending="answered",
            digest="a1b2",
            prompt_tokens=2,
            completion_tokens=1,
            prompt_ids=[1, 2],
            token_ids=[3],
            logprobs=[-0.5],
            text="1",
            weights_versions=["v3"],
            endpoint="judge-0",
            seconds=0.5,
        )
    ],
    metrics={"exact": 1.0},
    parts={"tests": 1.0},
    notes=["all 2 cases passed"],
    segments=[
        Segment(
            token_ids=[1, 2, 3],
            loss_mask=[0, 1, 1],
            logprobs=[None, -0.5, -0.25],
            weights_version=[None, "v3", "v3"],
            prompt_length=1,
            extras={"note": 1},
        )
    ],
    turns=[
        Turn(
            segment=0,
            prompt_length=1,
            response_length=2,
            text="2",
            finish_reason="stop",
            tool_calls=[{"name": "bash"}],
            tool_results=["ok"],
            timings={"model": 0.5},
            observation="higher",
            reward=0.5,
            constraint="json_schema",
        )
    ],
    timings=Timings(queued=0.5, init=1.0, run=2.0, eval=0.25),
    breaks={"retokenized": 1},
    endpoint="policy-0",
    node="n1",
    error=ERROR,
)

IMAGE_FAULT = ImageFault(
    image="docker://registry.example/swe:v2",
    message="it has no such tag",
    permanent=True,
    pulling=True,
    default=True,
    evaluator=True,
    registry_down=True,
)
SAMPLES = (
    Hello(
        identity=IDENTITY,
        held=[REF],
        widths={"RUN": 4},
        places=8,
        kinds=["math"],
        resumable_kinds=["math"],
        failed_kinds={"code": "missing"},
        ready_images=["docker://registry.example/swe:v1"],
    ),
    CapacityRequest(init=2, eval=1, kinds=["math"], grants=5),
    Heartbeat(
        held=[REF],
        widths={"RUN": 4},
        sandboxes=SandboxCounts(ready=2, warm=30, cold=4, unused=1),
        images=ImageStorage(images=3, layers=20, bytes=900, unshared_bytes=2500, evicted_layers=2, evicted_bytes=100),
        sent_at=12.5,
        memory_shortage="runs 6 of 10 sandboxes",
        image_shortage="cannot remove or rename folders of images",
        preparing="copies Python for sandboxes",
    ),
    HandBack(lease=REF, reason="NodeAgentError", message="ValueError: no", image=IMAGE_FAULT),
    ImageChanges(ready=["docker://registry.example/swe:v1"], gone=["docker://docker.io/a/b:c"], failed=[IMAGE_FAULT]),
    Welcome(
        lease_seconds=30.0,
        sandbox=SandboxTemplate(
            default_image="docker://registry.example/swe:v1",
            images=SandboxImages(
                shared_folder="/shared/images",
                credentials_file="/secrets/auth.json",
                insecure_registries=["registry.example"],
            ),
        ),
        stages=Stages(),
        places=8,
        lost=[REF],
    ),
    node.PrefetchImages(images=["docker://registry.example/swe:v1"]),
    Grant(leases=[LEASE, FORKED]),
    Renewed(sent_at=12.5, lost=[REF]),
    Cancel(lease=REF),
    RechooseEndpoint(lease=REF, role="policy", now=True),
    Drain(),
    node.Deadline(seconds=60.0, reason=node.WALLTIME_REASON),
    Resize(widths={"RUN": 4}, places=8),
    KeptSandboxList(kept=[KeptSandbox(lease=REF, until=12.5)]),
    ToolProofs(proofs=[TemplateProof(tokenizer="/models/m", proof=PROOF)]),
    Attach(id="c0ffee", lease=REF, kind="exec"),
    Start(
        kind=AttachKind.EXEC,
        command=["bash"],
        path="/workspace",
        tty=True,
        rows=40,
        columns=120,
        term="xterm",
        eval=True,
        follow=True,
        output=True,
    ),
    WindowSize(rows=40, columns=120),
    EndInput(),
    SendSignal(number=2),
    Acknowledge(channel=1, bytes=100),
    Ready(),
    Exited(code=1),
    Refused(code=409, reason="Conflict", message="it is queued"),
    NewEndpoint(lease=REF, role="policy", failed="policy-0", why="refused", again=True),
    ENDPOINT,
    SnapshotHeader(
        lease=REF,
        turn=2,
        sha256="0" * 64,
        archive_bytes=20480,
        files=3,
        left_out=["/tmp/socket"],
        left_out_count=1,
        image="sha256:1",
        error="why",
        seconds=0.5,
        resume=True,
    ),
    TurnsHeader(lease=REF, kept=2, resumed=RESUMPTION, weights_version="v3", stopped="no turns are saved after turn 2"),
    StoredTurns(snapshot=RolloutSnapshot(turn=1, size=9), resumptions=[RESUMPTION]),
    ResultHeader(
        lease=REF,
        status="Completed",
        reward=1.0,
        error=ERROR,
        metrics={"exact": 1.0},
        parts={"tests": 1.0},
        notes=["equal"],
        endpoint="policy-0",
        turns=1,
        tokens=2,
        prompt_tokens=5,
        sampled=2,
        tool_calls=1,
        timings={"run": 2.0},
        profile=RolloutProfile(
            model=1.5,
            tools=0.25,
            environment=0.125,
            tokens=TokenParts(prompt=3, answers=2),
            by_tool=[ToolUse(tool="bash", calls=1, judged=1, failed=1, tokens=1)],
            bands=[TurnBand(turns=1, read=3, sampled=2, context=3)],
        ),
        weights_versions=["v3"],
    ),
    EngineHello(identity=IDENTITY, url="https://n2:8000", csr="PEM"),
    EngineWelcome(certificate="PEM", heartbeat_seconds=5.0, token="shown-to-the-engine", weights=TARGET),
    EngineHeartbeat(
        identity=IDENTITY,
        url="https://n2:8000",
        ready=True,
        reason="loading",
        weights=WeightsReport(
            version="v3",
            checksum="sha256:1",
            phase="Failed",
            error="no such folder",
            attempt=2,
            note="no transfer here",
        ),
        running=1,
        tools=PROOF,
        waiting=2,
        kv_usage=0.5,
        context=4096,
        token="0f1e2d3c4b5a6978",
        load=EngineLoad(
            life=1,
            at=12.5,
            generated_tokens=10,
            prompt_tokens=20,
            prefix_queries=20,
            prefix_hits=5,
            preemptions=1,
            first_tokens=2,
            first_token_seconds=0.5,
        ),
    ),
    EngineOrders(known=False, drain=True, weights=TARGET, tokens=["ry1.new", "ry1.earlier"]),
    AllocationFile(
        allocation="policy-0",
        namespace="default",
        uid="5f1c",
        pool="policy",
        endpoint_file="endpoint.json",
        ca_file="ca.pem",
        scratch="scratch",
        inference=InferencePoolSpec.model_validate(
            {"replicas": 1, "model": {"path": "/models/policy"}, "engine": {"vllm": {}}}
        ),
    ),
    EndpointFile(url="https://n0:6443", epoch=3, job="7"),
)

"""Questions that nobody would ask, at every end point that answers about many rollouts: each is refused in a sentence that says
what one can do, or answered, and none is a fault of the server."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from rollyard.kinds.rollout import RolloutRequest
from rollyard.trust.bearer_tokens import Role
from tests.api.test_batches import client_of
from tests.api.test_evaluations import TASKS, evaluated, solves
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Api, Serve

ODD = (
    "", "-1", "9" * 18, "9" * 30, "1e308", "-1e308", "nan", "x", "'; DROP TABLE rollouts; --", "\0", "a\0b", "π" * 300, "💩",
    "../..", "a" * 5000, "{}", "[" * 500, "%s%n", "^(a+)+$", "*", "\u202e", "metadata.", "metadata.\0", "-tokens", '{"a": [1]}',
)  # fmt: skip
SEARCHED = (
    "namespace", "pool", "group", "status", "metadata", "suspicious", "kind", "mode", "reason", "task", "batch", "prefix",
    "since", "until", "min_reward", "max_reward", "limit",
)  # fmt: skip
ASKED = {
    "/v1/evaluations": ("namespace", "limit"),
    "/v1/evaluations/e": ("namespace", "solved_at", "by"),
    "/v1/evaluations/e/tasks": ("namespace",),
    "/v1/evaluations/e/comparison": ("namespace", "with", "solved_at"),
    "/v1/usage": ("namespace", "since", "by"),
    "/v1/usage/slurm": ("namespace", "since", "limit"),
    "/v1/allocations/successors": ("namespace",),
    "/v1/allocations/history": ("namespace", "since", "limit"),
    "/v1/history/pools/default/swe": ("kind", "since", "until", "step"),
    "/v1/history/endpoints/default/policy": ("since", "until", "step"),
    "/v1/history/batches/b": ("namespace", "series", "limit"),
    "/v1/nodes": ("namespace", "since"),
    "/v1/rollouts": (*SEARCHED, "sort", "after"),
    "/v1/rollouts/summary": (*SEARCHED, "by"),
    "/v1/rollouts/losses": ("namespace", "since"),
    "/v1/rollouts/stream": ("after", "upto", "trajectories"),
    "/v1/rollouts/r/snapshots/1": ("namespace",),
    "/v1/rollouts/r/tokens": ("namespace",),
}
WORDS = {
    "/v1/rollouts?after=9223372036854775808": "after must be a whole number from 0 to 9223372036854775807",
    "/v1/rollouts?limit=0": "limit must be a whole number from 1",
    "/v1/rollouts?sort=id": "sort must be one of ended, reward, tokens, ",
    "/v1/rollouts?since=-1": "since must be a number of seconds, at least 0",
    "/v1/rollouts?metadata=[]": 'metadata must be a JSON object of texts, numbers, true, false or null, such as {"difficulty"',
    "/v1/rollouts?prefx=a": "did you mean `prefix`?",
    "/v1/rollouts?pool=a&pool=b": "the query parameter pool was given more than once",
    "/v1/rollouts/summary?by=metadata.": "by must be one of reason, kind, pool, status, mode, group, task, or metadata.NAME",
    "/v1/rollouts/stream?after=99": "cursor 99 is ahead of the newest one",
    "/v1/rollouts/stream?upto=98": "cursor 98 is ahead of the newest one",
    "/v1/evaluations/e/comparison": "name the evaluation to compare with: `with`",
    "/v1/evaluations/none": "evaluation 'none' not found in namespace 'default'",
    "/v1/evaluations/e?namespace=other": "evaluation 'e' not found in namespace 'other'",
    "/v1/evaluations/e?solved_at=inf": "solved_at must be a number",
    "/v1/usage?by=user": "by must be one of pool, namespace, week",
    "/v1/history/pools/default/swe?since=9&until=8": "since must be before until",
    "/v1/history/pools/default/swe?step=0": "step must be a whole number from 1",
}
BODIES: tuple[tuple[str, dict[str, object], str], ...] = (
    ("/v1/evaluations", {"name": "x" * 81}, "name: "),
    ("/v1/evaluations", {"name": "../e"}, "name: "),
    ("/v1/evaluations", {"k": 1025}, "k: "),
    ("/v1/evaluations", {"tasks": 10**8}, "tasks: "),
    ("/v1/evaluations", {"pool": "none"}, "RolloutPool"),
    ("/v1/evaluations", {"k": 8}, "evaluation 'e' exists with other tasks or settings"),
    ("/v1/evaluations", {"tsks": 1}, "tsks"),
)


async def asked(api: Api, path: str) -> tuple[int, str]:
    """The status, and the message of a refusal. Of a stream only its begin is read."""
    async with asyncio.timeout(60), api.http.get(api.url + path) as answer:
        return answer.status, (await answer.json())["message"] if answer.status >= 400 else ""


async def test_each_odd_question_is_answered_or_refused_in_a_sentence(
    serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await evaluated(api, client, "e", solves(1, 2, 3, 4))
        await client.submit([RolloutRequest(id="r", pool="swe", task=TASKS[0])])
        for path, words in WORDS.items():
            status, message = await asked(api, path)
            assert (400 <= status < 500, words in message) == (True, True), (path, status, message)
        named = [(path, name) for path, names in ASKED.items() for name in names]
        odd = [
            f"{path}?{name}={quote(word)}"
            for number, (path, name) in enumerate(named)
            for word in ODD[number % 3 :: 3]  # a third: the parameters share their ways in
        ]
        for begin in range(0, len(odd), 100):
            some = odd[begin : begin + 100]
            for path, (status, message) in zip(
                some, await asyncio.gather(*(asked(api, one) for one in some)), strict=True
            ):
                assert status < 500, (path, message, caplog.text[-2000:])
                assert status == 200 or len(message) > 15, (path, message)
        body = (await client.evaluation("e")).request.model_dump(mode="json", exclude_defaults=True)
        for path, change, words in BODIES:
            status, answer = await api.ask("POST", path, {**body, **change})
            assert (400 <= status < 500, words in answer["message"]) == (True, True), (change, answer)
        assert (await client.evaluation("e")).ended == 16, "nothing was dropped"


@pytest.mark.parametrize("role", [Role.NODE, Role.ENGINE])
async def test_the_token_of_a_job_reads_nothing_of_people(serving: Serve, role: Role) -> None:
    async with serving() as api:
        await pool(api)
        headers = {"Authorization": f"Bearer {api.parts.signer.issue(role, 'u')}"}
        for path in (*ASKED, "/v1/changes", "/v1/images", "/v1/batches", "/v1/datasets", "/metrics", "/apis"):
            async with api.http.get(api.url + path, headers=headers) as answer:
                assert answer.status == 403, path
                assert "needs a token of role admin" in (await answer.json())["message"]
        for method, path in (
            ("POST", "/v1/evaluations"),
            ("POST", "/v1/evaluations/e/repeat"),
            ("DELETE", "/v1/evaluations/e"),
        ):
            async with api.http.request(method, api.url + path, headers=headers, json={}) as answer:
                assert answer.status == 403, path

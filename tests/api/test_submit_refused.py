"""Errors of a wrong submit: they name the rollout, the field, and the word that was probably meant."""

from __future__ import annotations

import io
import json
from typing import Any

from tests.support.outside_api import Api, Serve

TASK = {"kind": "math", "problem": "1 + 1", "answer": "2"}


def rollout(**more: Any) -> dict[str, Any]:
    return {"pool": "swe", "task": TASK, **more}


async def submit(api: Api, body: Any) -> tuple[int, str, list[tuple[str, str]]]:
    async with api.http.post(f"{api.url}/v1/rollouts", data=io.BytesIO(json.dumps(body).encode())) as found:
        status, told = found.status, await found.json()
    causes = (told.get("details") or {}).get("causes", [])
    return status, told.get("message", ""), [(c["field"], c["message"]) for c in causes]


async def test_a_misspelt_field_is_told_with_its_rollout_and_what_was_meant(serving: Serve) -> None:
    async with serving() as api:
        wrong = rollout(sampling={"temprature": 1})
        status, told, causes = await submit(api, {"rollouts": [rollout(), rollout(), wrong]})
        ((field, words),) = causes
        assert (status, field) == (422, "rollouts[2].sampling.temprature")
        assert words.startswith("unknown field; did you mean `temperature`?; fields here: temperature, top_p,")
        assert f"{field}: {words}" in told
        assert (await submit(api, [rollout(), wrong]))[2][0][0] == "[1].sampling.temprature"
        assert (await submit(api, wrong))[2][0][0] == "sampling.temprature"


async def test_each_mistake_is_told_as_in_a_manifest(serving: Serve) -> None:
    async with serving() as api:
        for more, field, words in (
            ({"temperature": 1}, "temperature", "it belongs to `sampling.temperature`"),
            ({"sampling": {"temperature": "0.5x"}}, "sampling.temperature", "number"),
            ({"sampling": {"top_p": 2}}, "sampling.top_p", "must be at most 1"),
            ({"mode": "trian"}, "mode", "must be one of train, eval"),
            ({"pool": None}, "pool", "is empty; write a string"),
            ({"task": 5}, "task", "must be a mapping"),
            ({"n": 0}, "n", "must be at least 1"),
        ):
            status, _, causes = await submit(api, rollout(**more))
            assert status == 422
            assert [f for f, _ in causes] == [field], causes
            assert words in causes[0][1], causes
        status, _, causes = await submit(api, [{"x": 1}] * 30)
        assert (status, len(causes)) == (422, 21)


async def test_a_large_submit_is_read_and_refused_as_a_small_one(serving: Serve) -> None:
    async with serving() as api:
        many = [rollout(task={**TASK, "problem": "x" * 2000}) for _ in range(1000)]
        status, told, _ = await submit(api, {"rollouts": many})
        assert (status, "there is no RolloutPool 'swe'" in told) == (422, True)
        many[700] = rollout(sampling={"temprature": 1})
        status, _, causes = await submit(api, {"rollouts": many})
        assert (status, [field for field, _ in causes]) == (422, ["rollouts[700].sampling.temprature"])
        status, told, _ = await submit(api, [rollout(task={**TASK, "problem": "x" * (3 << 20)})])
        assert (status, "at most 1048576 bytes" in told) == (422, True)
        status, told, _ = await submit(api, [[]] * 200_000)
        assert (status, "at most 4096 rollouts" in told) == (422, True)


async def test_a_number_above_the_range_of_a_float_is_refused(serving: Serve) -> None:
    """Stored, it would be null: JSON has no infinity."""
    async with serving() as api:
        for text, valid in (("1e999", False), ("-1e+400", False), ("9" * 400 + ".5", False), ("1e300", True)):
            task = json.dumps({"kind": "own", "text": "e999", "value": 0}).replace('"value": 0', f'"value": [{text}]')
            async with api.http.post(f"{api.url}/v1/rollouts", data=f'{{"pool": "swe", "task": {task}}}') as found:
                told = (await found.json())["message"]
                assert ("above the range of a 64-bit float" in told) is not valid
                assert found.status == (422 if valid else 400), "a valid one finds no pool"
            async with api.http.put(f"{api.url}/v1/datasets/huge-{text[:2]}", data=task.encode()) as found:
                assert found.status == (201 if valid else 422), await found.text()


async def test_half_of_a_surrogate_pair_is_refused_where_it_arrives(serving: Serve) -> None:
    async with serving() as api:
        body = json.dumps(rollout(sampling={"extra": {"a": "\ud800"}})).encode()
        async with api.http.post(f"{api.url}/v1/rollouts", data=body) as found:
            assert found.status == 400
            assert "surrogate" in (await found.json())["message"] or "hex escape" in (await found.json())["message"]

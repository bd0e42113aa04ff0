"""The engine as a process: vLLM's shapes over a Unix socket, and its manners when clients or parents go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.reference_model import sampled_logprobs
from tests.support.until import until

PROMPT = [1, 30, 31, 32, 33, 34, 35, 36]
LIMIT = 60.0


@pytest.fixture(scope="module")
def engine(start_engine: Any) -> Any:
    return start_engine("--max-sequences", "4", "--max-model-len", "1024")


@pytest.fixture
async def http(engine: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with engine.session() as session:
        yield session


async def ask(http: aiohttp.ClientSession, expect: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 8, "logprobs": 0, "return_token_ids": True, **fields}
    async with http.post("/v1/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == expect, answer
        return answer


def alike(logprobs: list[float]) -> Any:
    """A prompt that was found in the cache gives other last bits than one that was computed whole."""
    return pytest.approx(logprobs, abs=1e-4)


async def chunks(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    lines = [line async for line in response.content if line.startswith(b"data: ")]
    assert lines.pop() == b"data: [DONE]\n"
    return [json.loads(line[6:]) for line in lines]


async def metrics(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    named = [line.removeprefix("vllm:").split("{") for line in lines if line.startswith("vllm:")]
    return {name: float(rest.rsplit(" ", 1)[1]) for name, rest in named}


async def metrics_once(http: aiohttp.ClientSession, **wanted: float) -> dict[str, float]:
    async def so() -> dict[str, float] | None:
        found = await metrics(http)
        return found if wanted.items() <= found.items() else None

    return await until(so, LIMIT)


async def test_a_whole_answer(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, request_id="mine", seed=1, logprobs=2, ignore_eos=True)
    choice = answer["choices"][0]
    assert (answer["id"], answer["object"], answer["model"]) == ("cmpl-mine", "text_completion", "policy")
    assert choice["prompt_token_ids"] == PROMPT
    assert (len(choice["token_ids"]), choice["finish_reason"], choice["stop_reason"]) == (8, "length", None)
    logprobs = choice["logprobs"]
    assert [len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [8] * 4
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob <= 0
        assert len(top) in (2, 3)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 8, 16)


async def test_a_stream_says_the_same_in_pieces(http: aiohttp.ClientSession) -> None:
    whole = (await ask(http, seed=5, max_tokens=60, ignore_eos=True))["choices"][0]
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 60, "seed": 5, "ignore_eos": True, "stream": True}
    body |= {"logprobs": 0, "return_token_ids": True, "stream_options": {"include_usage": True}}
    async with http.post("/v1/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        *pieces, usage = await chunks(response)
    choices = [piece["choices"][0] for piece in pieces]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    told = {name: [v for choice in choices for v in choice["logprobs"][name]] for name in whole["logprobs"]}
    for name in ("tokens", "text_offset"):
        assert told[name] == whole["logprobs"][name]
    assert told["token_logprobs"] == alike(whole["logprobs"]["token_logprobs"])
    assert [list(top) for top in told["top_logprobs"]] == [list(top) for top in whole["logprobs"]["top_logprobs"]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[0]["prompt_token_ids"] == PROMPT
    assert all(choice["prompt_token_ids"] is None for choice in choices[1:])
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 60)


async def test_the_stopping_token_is_among_the_ids_and_not_in_the_text(http: aiohttp.ClientSession) -> None:
    free = (await ask(http, seed=3, max_tokens=20, ignore_eos=True))["choices"][0]
    stop = free["token_ids"][5]
    cut = (await ask(http, seed=3, max_tokens=20, ignore_eos=True, stop_token_ids=[stop]))["choices"][0]
    length = free["token_ids"].index(stop) + 1
    assert cut["token_ids"] == free["token_ids"][:length]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["text"] == "".join(free["logprobs"]["tokens"][: length - 1])


WORDY = {"seed": 4, "temperature": 9.0, "max_tokens": 60, "ignore_eos": True}
"""Any token, one as likely as the other."""


def spanning(choice: dict[str, Any], first: int) -> tuple[str, int]:
    """A text from within one token to within the next that comes once, and how many tokens it takes to say it."""
    pieces = choice["logprobs"]["tokens"]
    for at in range(first, len(pieces) - 1):
        one, other = pieces[at], pieces[at + 1]
        stop = one[1:] + other[:-1]
        if min(len(one), len(other)) > 2 and stop.isascii() and choice["text"].count(stop) == 1:
            return stop, at + 2
    raise AssertionError(pieces)


async def test_a_stop_string_ends_at_the_token_that_completes_it(http: aiohttp.ClientSession) -> None:
    free = (await ask(http, **WORDY))["choices"][0]
    stop, tokens = spanning(free, 5)
    for asked in (stop, ["never said", stop, free["text"][free["text"].index(stop) + 1 :]]):
        answer = await ask(http, **WORDY, stop=asked)
        cut = answer["choices"][0]
        assert cut["token_ids"] == free["token_ids"][:tokens]
        assert cut["logprobs"]["token_logprobs"] == alike(free["logprobs"]["token_logprobs"][:tokens])
        assert cut["text"] == free["text"][: free["text"].index(stop)]
        assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
        assert answer["usage"]["completion_tokens"] == tokens
    kept = (await ask(http, **WORDY, stop=[stop], include_stop_str_in_output=True))["choices"][0]
    assert kept["text"] == cut["text"] + stop
    assert kept["token_ids"] == cut["token_ids"]


async def test_of_two_stop_strings_the_one_that_ends_first_counts(http: aiohttp.ClientSession) -> None:
    free = (await ask(http, **WORDY))["choices"][0]
    later, _ = spanning(free, 5)
    earlier = later[:-1]
    cut = (await ask(http, **WORDY, stop=[later, earlier]))["choices"][0]
    assert cut["stop_reason"] == earlier


@pytest.mark.parametrize("kept", [False, True])
async def test_a_stream_never_says_the_beginning_of_a_stop_string(http: aiohttp.ClientSession, kept: bool) -> None:
    free = (await ask(http, **WORDY))["choices"][0]
    stop, _ = spanning(free, 12)
    fields = WORDY | {"stop": [stop, "x" * 40], "include_stop_str_in_output": kept}
    whole = (await ask(http, **fields))["choices"][0]
    body = {"model": "policy", "prompt": PROMPT, "stream": True, "return_token_ids": True, **fields}
    async with http.post("/v1/completions", json=body) as response:
        choices = [piece["choices"][0] for piece in await chunks(response)]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)


async def test_what_might_have_become_a_stop_string_is_said_at_the_end(http: aiohttp.ClientSession) -> None:
    free = (await ask(http, **WORDY))["choices"][0]
    never = free["text"][-30:] + "and no more"
    body = {"model": "policy", "prompt": PROMPT, "stream": True, "return_token_ids": True, "stop": never, **WORDY}
    async with http.post("/v1/completions", json=body) as response:
        choices = [piece["choices"][0] for piece in await chunks(response)]
    assert "".join(choice["text"] for choice in choices) == free["text"]
    assert choices[-1]["finish_reason"] == "length"


async def test_the_models_own_end_has_no_stop_reason(http: aiohttp.ClientSession, model_dir: Path) -> None:
    eos = json.loads((model_dir / "config.json").read_text())["eos_token_id"]
    prompt = "<|im_start|>user\nWhat is 3 * 4?<|im_end|>\n<|im_start|>assistant\n"
    for seed in range(10):
        choice = (await ask(http, prompt=prompt, seed=seed, max_tokens=400))["choices"][0]
        if choice["finish_reason"] == "stop":
            break
    assert (choice["token_ids"][-1], choice["finish_reason"], choice["stop_reason"]) == (eos, "stop", None)
    assert eos not in choice["token_ids"][:-1]
    assert "<|im_end|>" not in choice["text"]


async def test_text_and_lists_of_one_are_prompts_too(http: aiohttp.ClientSession) -> None:
    text = await ask(http, prompt="<|im_start|>user\n12", temperature=0)
    ids = text["choices"][0]["prompt_token_ids"]
    for prompt in (ids, [ids], ["<|im_start|>user\n12"]):
        again = await ask(http, prompt=prompt, temperature=0)
        assert again["choices"][0]["prompt_token_ids"] == ids
        assert again["choices"][0]["token_ids"] == text["choices"][0]["token_ids"]
    assert (await ask(http, prompt=[5]))["usage"]["prompt_tokens"] == 1


async def test_max_tokens_is_cut_to_the_context(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, prompt=PROMPT * 127, max_tokens=10_000, ignore_eos=True)
    assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (1024, "length")


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"prompt": PROMPT * 128}, 400, "maximum context length is 1024 tokens. However, your request has 1024"),
        ({"prompt": [5, 10**6]}, 400, "outside of the vocabulary"),
        ({"prompt": []}, 400, "empty"),
        ({"prompt": [[1], [2]]}, 400, "prompt"),
        ({"n": 2}, 400, "`n` is not supported"),
        ({"stop": ["x", ""]}, 400, "`stop` must not contain an empty string"),
        ({"stop": [7]}, 400, "`stop.0`: Input should be a valid string"),
        ({"guided_json": {}}, 400, "the fields are model, prompt"),
        ({"temperature": -1}, 400, "greater than or equal to 0"),
        ({"top_p": 0}, 400, "greater than 0"),
        ({"logprobs": 21}, 400, "less than or equal to 20"),
        ({"seed": 2**63}, 400, "seed"),
        ({"max_tokens": 0}, 400, "max_tokens"),
    ],
    ids=str,
)
async def test_what_it_cannot_do_is_refused_in_vllms_shape(
    http: aiohttp.ClientSession, fields: dict[str, Any], code: int, says: str
) -> None:
    error = (await ask(http, expect=code, **fields))["error"]
    assert says in error["message"]
    assert error["code"] == code
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[code]


async def test_fields_at_values_that_change_nothing_are_taken(http: aiohttp.ClientSession) -> None:
    await ask(http, n=1, stop=[], frequency_penalty=0.0, repetition_penalty=1.0, top_k=-1, user="x", echo=False)


async def test_models_health_and_metrics(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("policy", 1024)
    async with http.get("/health") as response:
        assert response.status == 200
    names = ["prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total", "prefix_cache_queries_total"]
    before = await metrics(http)
    first = await ask(http, prompt=[40, *range(100, 160)])
    second = await ask(http, prompt=[40, *range(100, 160), 41])
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 61
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    sampled = first["usage"]["completion_tokens"] + second["usage"]["completion_tokens"]
    after = await metrics(http)
    assert [after[name] - before[name] for name in names] == [61 + 62, sampled, 61, 61 + 62]


async def test_the_next_turn_finds_prompt_and_answer_in_the_cache(http: aiohttp.ClientSession) -> None:
    prompt = [50, *range(200, 260)]
    first = await ask(http, prompt=prompt, ignore_eos=True)
    second = await ask(http, prompt=[*prompt, *first["choices"][0]["token_ids"], 7, 8, 9])
    # all but the last sampled token, which was never put in
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 61 + 7


async def test_a_seed_gives_the_same_tokens_among_others(http: aiohttp.ClientSession) -> None:
    fields = {"prompt": [60, *range(300, 340)], "max_tokens": 40, "ignore_eos": True}
    alone = (await ask(http, seed=11, **fields))["choices"][0]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(http, seed=seed, **fields)) for seed in (11, 12, 13, 11, 14, 15, 11)]
    answers = [task.result()["choices"][0]["token_ids"] for task in tasks]
    assert [ids for ids in answers if ids == alone["token_ids"]] == [alone["token_ids"]] * 3
    assert len({tuple(ids) for ids in answers}) == 5


async def test_without_a_seed_answers_differ(http: aiohttp.ClientSession) -> None:
    answers = [
        (await ask(http, temperature=9.0, max_tokens=40, ignore_eos=True))["choices"][0]["token_ids"] for _ in range(3)
    ]
    assert len({tuple(ids) for ids in answers}) == 3


async def test_logprobs_are_those_of_the_model(http: aiohttp.ClientSession, model_dir: Path) -> None:
    prompts = [[70 + i, *range(100, 150 + 40 * i)] for i in range(4)]
    fields: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ask(http, prompt=p, seed=i, temperature=0.7, **fields)) for i, p in enumerate(prompts)
        ]
    for prompt, task in zip(prompts, tasks, strict=True):
        choice = task.result()["choices"][0]
        exact = sampled_logprobs(model_dir, prompt, choice["token_ids"])
        assert len(exact) == 120
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_aborts_its_request(http: aiohttp.ClientSession, engine: Any, stream: bool) -> None:
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "stream": stream}

    async def read_all(leaving: aiohttp.ClientSession) -> None:
        async with leaving.post("/v1/completions", json=body) as response:
            await response.read()

    async with engine.session() as leaving:
        request = asyncio.create_task(read_all(leaving))
        before = await metrics_once(http, num_requests_running=1)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
    after = await metrics_once(http, num_requests_running=0)
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 900


async def test_more_requests_than_the_batch_holds_wait(http: aiohttp.ClientSession) -> None:
    async with asyncio.TaskGroup() as group:
        for seed in range(6):
            group.create_task(ask(http, max_tokens=400, seed=seed, ignore_eos=True))
        found = await metrics_once(http, num_requests_waiting=2, num_requests_running=4)
        assert 0 < found["kv_cache_usage_perc"] < 1
    await metrics_once(http, num_requests_waiting=0, num_requests_running=0)


def test_the_socket_is_for_its_owner_alone(engine: Any) -> None:
    assert stat.S_IMODE(os.stat(engine.socket).st_mode) == 0o600


async def test_sigterm_ends_what_runs_with_abort_and_the_process_with_0(start_engine: Any) -> None:
    engine = start_engine()
    async with engine.session() as http:
        body = {"model": "policy", "prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with http.post("/v1/completions", json={**body, "return_token_ids": True}) as response:
            await response.content.readline()
            engine.process.send_signal(signal.SIGTERM)
            last = (await chunks(response))[-1]["choices"][0]
    assert last["finish_reason"] == "abort"
    assert await asyncio.to_thread(engine.process.wait, LIMIT) == 0
    assert not engine.socket.exists()


async def test_the_engine_ends_when_its_parent_is_killed(model_dir: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    command = [sys.executable, "-m", "rollyard.engine.embedded", "--model", str(model_dir), "--served-name", "policy"]
    code = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command, "--uds", str(socket)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        async with asyncio.timeout(LIMIT):
            while not socket.exists():
                await asyncio.sleep(0.01)
            parent.kill()
            while Path(f"/proc/{pid}/exe").exists():
                await asyncio.sleep(0.01)
    assert not socket.exists()

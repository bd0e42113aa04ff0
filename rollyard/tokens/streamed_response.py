"""Reads one streamed answer and checks it against the request. A wrong answer would spoil the training.

Error messages contain neither the endpoint's access token nor a header.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp
from pydantic_core import from_json

from rollyard.core.errors import AnswerRefused, ContextExceeded, EndpointRefused
from rollyard.tokens.endpoint_dialects import Dialect, StreamChunk
from rollyard.tokens.sampled_tokens import Likeliest, Sampled, StreamLost
from rollyard.wire.endpoint import Endpoint

OnProgress = Callable[[Sampled], None]
"""Function that is called with the tokens of each chunk when the chunk arrives."""

MAX_MESSAGE = 300
END_SECONDS = 5.0
"""Seconds after which a complete answer is taken although the server has not ended the body."""
TOO_LONG = re.compile(
    r"context (?:length|size|window)|maximum model length|max_model_len|context_length_exceeded"
    r"|max_tokens must be at least 1, got 0",
    re.I,
)
"""Patterns of the errors with which vLLM, SGLang, llama.cpp and the embedded engine report that a prompt is too long.

The last pattern is vLLM's error for a prompt that fills the context exactly. vLLM lowers max_tokens to 0, and then
refuses 0 as too low.
"""
LIMIT = re.compile(r"(?:context (?:length|size|window)|model length)\D{0,12}(\d+)", re.I)
LENGTH = frozenset(["length", "max_tokens", "model_length", "context_length"])
"""Finish reasons that mean that a length limit was reached."""
ROUNDING = 1e-4
"""Greatest accepted logprob. Engines compute in float32, so a probability of 1 may give a logprob slightly above 0."""
UNNAMED_VERSION = "default"
"""Version that vLLM reports if its weights have no name."""
MISSING_LOGPROB = -9999.0
"""Number that vLLM sends for minus infinity, because JSON has no infinity."""


@dataclass(frozen=True)
class SentRequest:
    """Values of the request that the answer must match."""

    prompt_ids: Sequence[int]
    max_tokens: int
    stop_ids: frozenset[int]
    top_logprobs: int = 0


class PromptTooLong(ContextExceeded):
    """Raised if the endpoint reports that the prompt is too long. `context`: length of the context, if it is reported."""

    ending = "PromptTooLong"

    def __init__(self, message: str) -> None:
        limit = LIMIT.search(message)
        super().__init__(message, context=int(limit[1]) if limit else None)


class StreamedResponse:
    """One answer that is arriving."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, sent: SentRequest, on_progress: OnProgress | None) -> None:
        self._endpoint = endpoint
        self._dialect = dialect
        self._read = dialect.reader()
        self._sent = sent
        self._on_progress = on_progress
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[str] = []
        self._likeliest: list[Likeliest] = []
        self._version = endpoint.weights_version
        self._event_version = False
        self._echoed = False
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    async def read(self, content: aiohttp.StreamReader, first_seconds: float, next_seconds: float) -> None:
        """Read the answer to its end. The body is read to its end too, because a connection is reused only after that.

        Raises TimeoutError if no token comes for `first_seconds`, or for `next_seconds` after the first one: a server, or a
        proxy in front of it, may send comments for ever. Raises ValueError, LookupError, TypeError or AttributeError for a
        malformed event. Raises PromptTooLong, EndpointRefused or StreamLost for an error in the answer, and AnswerRefused
        for an answer that cannot be trained on.
        """
        loop = asyncio.get_running_loop()
        rest, until = b"", loop.time() + first_seconds
        while True:
            async with asyncio.timeout_at(until):
                data = await content.readany()
            # Lines are split here, because the first line repeats the prompt's ids and can exceed the limit of aiohttp's
            # `readline`, 128 KiB.
            *lines, rest = (rest + data).split(b"\n")
            before = len(self._ids), self.finished
            for line in lines:
                if line.startswith(b"data:") and (text := line[5:].strip()) != b"[DONE]":
                    self._add_event(from_json(text))
            if not data:
                return
            if before != (len(self._ids), self.finished):
                until = loop.time() + (min(next_seconds, END_SECONDS) if self.finished else next_seconds)

    def _add_event(self, event: Any) -> None:
        """Add one event: a chunk, a new weights version, an error, or usage, which is ignored."""
        event = self._read(event)
        if not isinstance(event, dict):
            return
        if (error := _error_in(event)) is not None:
            self.fail(*error)
        if event.get("object") == "rollyard.weights":
            self._version, self._event_version = str(event["weights_version"]), True
        elif choices := event.get("choices"):
            if len(choices) > 1 or choices[0].get("index"):
                self._refuse_answer("sends several answers for one request", "use an engine that supports `n`")
            self._add(self._dialect.chunk(event))

    def _add(self, chunk: StreamChunk) -> None:
        self._check_echo(chunk)
        ids = chunk.ids
        if ids is None or len(ids) != len(chunk.logprobs) or (chunk.named is not None and chunk.named != ids):
            self._refuse_answer(
                "does not send token ids with their logprobs",
                "use an engine that supports `return_token_ids` and `logprobs` (vLLM 0.10.2 or later)",
            )
        for logprob in chunk.logprobs:
            # written so that NaN is refused: every comparison with NaN is false
            if not isinstance(logprob, int | float) or not MISSING_LOGPROB < logprob <= ROUNDING:
                self._refuse_answer(f"sent {logprob} as a token's logprob", "check its weights and its --logprobs-mode")
        self._ids += ids
        self._logprobs += chunk.logprobs
        likeliest = self._read_likeliest(chunk)
        self._likeliest += likeliest
        self._versions += [self._version] * len(ids)
        if len(self._ids) > self._sent.max_tokens:
            self._refuse_answer(
                f"sent more than the {self._sent.max_tokens} tokens asked for",
                "use an engine that supports `max_tokens`",
            )
        if chunk.finish_reason is not None:
            self._end(chunk)
        if ids and self._on_progress:
            self._on_progress(Sampled(ids, chunk.logprobs, [], likeliest=likeliest))

    def _read_likeliest(self, chunk: StreamChunk) -> list[Likeliest]:
        """Return the likeliest tokens at each position, if the request wants them. Raises EndpointRefused if the server
        does not send their ids."""
        count, found = self._sent.top_logprobs, chunk.likeliest or []
        if not count or not chunk.ids:
            return []
        try:
            pairs = [self._dialect.pairs(one) for one in found]
        except (ValueError, LookupError, TypeError, AttributeError):
            pairs = []
        if len(pairs) != len(chunk.ids):
            raise EndpointRefused(
                f"endpoint {self._endpoint.id} does not send the ids of the likeliest tokens; leave out `top_logprobs`"
            )
        # written so that NaN, which JSON cannot hold, becomes a number
        kept = ([(id, max(MISSING_LOGPROB, logprob)) for id, logprob in one] for one in pairs)
        return [tuple(sorted(one, key=lambda pair: -pair[1])[:count]) for one in kept]

    def _end(self, chunk: StreamChunk) -> None:
        reason, self._stop_reason = chunk.finish_reason, chunk.stop_reason
        if isinstance(reason, dict):  # SGLang's own form
            if TOO_LONG.search(str(reason.get("message", ""))):
                raise PromptTooLong(self._plain(str(reason["message"])))
            reason = reason.get("type", "abort")
        self._finish_reason = "length" if reason in LENGTH else str(reason)
        if chunk.weight_versions and not self._event_version:
            self._versions = self._versions_from_spans(chunk.weight_versions)

    def _versions_from_spans(self, spans: list[dict[str, Any]]) -> list[str]:
        versions: list[str] = []
        for span in spans:
            if span["start"] != len(versions):
                break
            version = self._endpoint.weights_version if span["version"] == UNNAMED_VERSION else str(span["version"])
            versions += [version] * (span["end"] - span["start"])
        if len(versions) != len(self._ids):
            self._refuse_answer(
                f"sent weight_versions that do not cover its {len(self._ids)} tokens", "correct the server"
            )
        return versions

    def _check_echo(self, chunk: StreamChunk) -> None:
        echoed = chunk.prompt_ids if self._dialect.echoes else chunk.prompt_tokens
        if echoed is not None and not self._echoed:
            self._echoed = True
            prompt_ids = self._sent.prompt_ids
            if echoed != (prompt_ids if self._dialect.echoes else len(prompt_ids)):
                self._refuse_answer(
                    "answered another prompt than Rollyard sent",
                    "use an engine that accepts ids unchanged, without truncation and without tokens before them",
                )

    def fail(self, status: int, text: str) -> NoReturn:
        """Raise the error for an HTTP status or for the code of an error event. `text`: body or message."""
        message = self._plain(_error_sentence(text))
        if status in (400, 413, 422) and TOO_LONG.search(message):
            raise PromptTooLong(message)
        # 401 and 403: the endpoint has another token by now, which the next look-up may give
        if 400 <= status < 500 and status not in (401, 403, 408, 429):
            raise EndpointRefused(f"endpoint {self._endpoint.id} refused the request ({status}): {message}")
        raise self.lost(f"{status}: {message}")

    def lost(self, why: str) -> StreamLost:
        return StreamLost(f"endpoint {self._endpoint.id} was lost ({why})", self._sampled("abort"))

    @property
    def finished(self) -> bool:
        return self._finish_reason in ("stop", "length")

    def result(self) -> Sampled:
        """Return the answer.

        Raises StreamLost if the answer is not complete, AnswerRefused if the answer cannot be trained on, and
        ContextExceeded if no token fits after the prompt.
        """
        if self._finish_reason is None:
            raise self.lost("the stream ended early")
        if not self.finished:
            raise self.lost(f"finish_reason {self._finish_reason}")
        self._check_end()
        return self._sampled(self._finish_reason)

    def _check_end(self) -> None:
        if not self._ids and self._finish_reason == "length":
            raise ContextExceeded(f"no token fits after the {len(self._sent.prompt_ids)} tokens of the prompt")
        if not self._ids:
            self._refuse_answer("finished without a token", "use an engine that also sends the token that ends a turn")
        if not self._echoed:
            self._refuse_answer("did not return the prompt's ids", "use an engine that supports `return_token_ids`")
        if self._finish_reason != "stop":
            return
        last, why = self._ids[-1], self._stop_reason
        if (isinstance(why, int) and why != last) or (why is None and last not in self._sent.stop_ids):
            self._refuse_answer(
                f"stopped at token {last}, which does not end a turn in this tokenizer",
                "set the pool's `tokenizer` to that of the served model",
            )

    def _refuse_answer(self, what: str, remedy: str) -> NoReturn:
        raise AnswerRefused(f"endpoint {self._endpoint.id} {what}; {remedy}")

    def _sampled(self, finish_reason: str) -> Sampled:
        return Sampled(self._ids, self._logprobs, self._versions, finish_reason, self._likeliest)

    def _plain(self, text: str) -> str:
        """Remove the access token, which a server may repeat in its error, and shorten the text."""
        if self._endpoint.token:
            text = text.replace(self._endpoint.token, "…")
        return " ".join(text.split())[:MAX_MESSAGE]


def _error_in(event: dict[str, Any]) -> tuple[int, str] | None:
    """Return the status and the message of an error event; None for another event.

    Servers name a number as the code, a word (`context_length_exceeded`), or none.
    """
    error = event if event.get("object") == "error" else event.get("error")
    if not error:
        return None
    if isinstance(error, str):
        return 500, error
    code, message = error.get("code"), str(error.get("message", ""))
    if code is not None and str(code).isdecimal():
        return int(code), message
    message = f"{message} ({code})" if code else message
    return 400 if TOO_LONG.search(message) else 500, message


def _error_sentence(text: str) -> str:
    """Return the message in an engine's error, which is JSON; other text is returned unchanged."""
    try:
        body = from_json(text)
    except ValueError:
        return text
    match body:
        case {"error": {"message": str(said)}} | {"message": str(said)} | {"detail": str(said)} | {"error": str(said)}:
            return said
        case {"detail": [{"msg": str()}, *_] as faults}:  # FastAPI's error for a wrong field
            texts = (f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg')}" for fault in faults)
            return "; ".join(texts)
    return text

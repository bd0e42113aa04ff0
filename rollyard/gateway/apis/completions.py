"""OpenAI's `/v1/completions`: continues a prompt of text or of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollyard.gateway.apis.base import Body, flag, model_of, new_id, openai_error, sse_data, unix_now, wants_usage
from rollyard.gateway.apis.chat import usage_json
from rollyard.gateway.apis.logprobs_json import CompletionLogprobs
from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import ChatResponse, Piece, SendPiece, TokenLogprob
from rollyard.gateway.requests.sampling_overrides import read_choices, read_overrides, read_top_logprobs
from rollyard.gateway.session.session import GatewaySession

OWN_FIELDS = ("model", "prompt", "stream", "stream_options", "n", "best_of", "logprobs")


class CompletionExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._usage = wants_usage(body)
        self._model = model_of(body)
        self._prompt = _prompt(body.get("prompt"))
        top = None if body.get("logprobs") in (None, False) else read_top_logprobs(body, "logprobs")
        self._overrides = replace(read_overrides(body, OWN_FIELDS), choices=read_choices(body), top_logprobs=top)
        if body.get("best_of") not in (None, self._overrides.choices):
            raise bad_request("`best_of` must equal `n`, because every sampled answer is returned", param="best_of")
        self._id, self._created = new_id("cmpl-"), unix_now()
        self._sent: dict[int, int] = {}
        """Index of an answer -> number of logprobs sent."""
        self._logprobs: dict[int, CompletionLogprobs] = {}

    async def run(self, session: GatewaySession, on_piece: SendPiece | None) -> Sequence[ChatResponse]:
        async with session.room_for_logprobs(self._overrides):
            return await session.complete(self._prompt, self._overrides, on_piece)

    def response_body(self, responses: Sequence[ChatResponse]) -> dict[str, Any]:
        choices = [self._choice(i, one.content, one.logprobs, one.finish) for i, one in enumerate(responses)]
        return {**self._envelope(choices), "usage": usage_json(responses)}

    def text_events(self, piece: Piece) -> bytes:
        self._sent[piece.index] = self._sent.get(piece.index, 0) + len(piece.logprobs)
        return sse_data(self._envelope([self._choice(piece.index, piece.text, piece.logprobs, None)]))

    def end_events(self, responses: Sequence[ChatResponse]) -> bytes:
        events = []
        for i, response in enumerate(responses):
            left = response.logprobs[self._sent.get(i, 0) :]
            events.append(sse_data(self._envelope([self._choice(i, "", left, response.finish)])))
        if self._usage:
            events.append(sse_data({**self._envelope([]), "usage": usage_json(responses)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error_events(self, refusal: GatewayError) -> bytes:
        return sse_data(openai_error(refusal))

    def _choice(self, index: int, text: str, logprobs: Sequence[TokenLogprob], finish: str | None) -> dict[str, Any]:
        part = None
        if self._overrides.top_logprobs is not None:
            part = self._logprobs.setdefault(index, CompletionLogprobs()).part(logprobs)
        return {"index": index, "text": text, "logprobs": part, "finish_reason": finish}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        envelope = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        return {**envelope, "choices": choices}


def _prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(id) is int and id >= 0 for id in prompt):
        return prompt
    raise bad_request("`prompt` must be one text or one list of token ids, and must not be empty", param="prompt")

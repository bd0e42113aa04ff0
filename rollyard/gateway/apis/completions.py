"""OpenAI's `/v1/completions`: continues a prompt of text or of token ids."""

from __future__ import annotations

from typing import Any

from rollyard.gateway.apis.base import Body, flag, model_of, new_id, openai_error, sse_data, unix_now, wants_usage
from rollyard.gateway.apis.chat import usage_json
from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import ChatResponse
from rollyard.gateway.requests.sampling_overrides import read_overrides
from rollyard.gateway.session.session import GatewaySession, SendText

OWN_FIELDS = ("model", "prompt", "stream", "stream_options")


class CompletionExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._usage = wants_usage(body)
        self._model = model_of(body)
        self._prompt = _prompt(body.get("prompt"))
        self._overrides = read_overrides(body, OWN_FIELDS)
        self._id, self._created = new_id("cmpl-"), unix_now()

    async def run(self, session: GatewaySession, on_text: SendText | None) -> ChatResponse:
        return await session.complete(self._prompt, self._overrides, on_text)

    def response_body(self, response: ChatResponse) -> dict[str, Any]:
        return {**self._envelope(response.content, response.finish), "usage": usage_json(response)}

    def text_events(self, piece: str) -> bytes:
        return sse_data(self._envelope(piece, None))

    def end_events(self, response: ChatResponse) -> bytes:
        last = sse_data(self._envelope("", response.finish))
        if self._usage:
            last += sse_data({**self._envelope("", None), "choices": [], "usage": usage_json(response)})
        return last + b"data: [DONE]\n\n"

    def error_events(self, refusal: GatewayError) -> bytes:
        return sse_data(openai_error(refusal))

    @staticmethod
    def error_body(refusal: GatewayError) -> dict[str, Any]:
        return openai_error(refusal)

    def _envelope(self, text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        envelope = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        return {**envelope, "choices": [choice]}


def _prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(id) is int and id >= 0 for id in prompt):
        return prompt
    raise bad_request("`prompt` must be one text or one list of token ids, and must not be empty", param="prompt")

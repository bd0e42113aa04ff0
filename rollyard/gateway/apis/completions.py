"""OpenAI's `/v1/completions`: a prompt of text or of ids, continued."""

from __future__ import annotations

from typing import Any

from rollyard.gateway.apis.base import Body, data, flag, model_of, new_id, now, openai_error, wants_usage
from rollyard.gateway.apis.chat import usage
from rollyard.gateway.requests.call_errors import Refusal, bad_request
from rollyard.gateway.requests.chat_request import Said
from rollyard.gateway.requests.sampling_overrides import read_wanted
from rollyard.gateway.session.session import Session, Tell

OWN = ("model", "prompt", "stream", "stream_options")


class CompletionExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._usage = wants_usage(body)
        self._model = model_of(body)
        self._prompt = _prompt(body.get("prompt"))
        self._wanted = read_wanted(body, OWN)
        self._id, self._created = new_id("cmpl-"), now()

    async def carry_out(self, session: Session, tell: Tell | None) -> Said:
        return await session.complete(self._prompt, self._wanted, tell)

    def whole(self, said: Said) -> dict[str, Any]:
        return {**self._envelope(said.content, said.finish), "usage": usage(said)}

    def text(self, piece: str) -> bytes:
        return data(self._envelope(piece, None))

    def end(self, said: Said) -> bytes:
        last = data(self._envelope("", said.finish))
        if self._usage:
            last += data({**self._envelope("", None), "choices": [], "usage": usage(said)})
        return last + b"data: [DONE]\n\n"

    def broken(self, refusal: Refusal) -> bytes:
        return data(openai_error(refusal))

    @staticmethod
    def error(refusal: Refusal) -> dict[str, Any]:
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

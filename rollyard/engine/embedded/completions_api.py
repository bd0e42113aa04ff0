"""Bodies of `/v1/completions` in vLLM's format. Parses requests; builds responses and chunks of streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, from_json
from tokenizers import Tokenizer

from rollyard.core.errors import ApiError, BadRequest, NotFound
from rollyard.engine.embedded.generation import GenerationRequest, StepResult, StopTokens
from rollyard.engine.embedded.sampling import Draw, SamplingParams
from rollyard.engine.embedded.stop_strings import StopStringMatcher, TextStream
from rollyard.engine.embedded.token_grammar import TokenGrammars

MAX_LOGPROBS = 20
INT64 = 2**63

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "prompt_logprobs": (None,),
    "user": (),
}
"""vLLM's fields that have no effect here, each with the accepted values. An empty tuple accepts every value."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The supported fields. Another field is refused, unless it is null, or is in NEUTRAL and has an accepted value."""

    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: list[int] | str
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: list[str] = []
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] = []
    structured_outputs: dict[str, Any] | None = None
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    request_id: str = Field(default_factory=lambda: secrets.token_hex(16))

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError("the body must be a JSON object")
        for name, values in NEUTRAL.items():
            if name in data and values and data[name] not in values:
                raise ValueError(f"`{name}` is not supported by the embedded engine; leave it out")
        fields = {k: v for k, v in data.items() if k not in NEUTRAL and v is not None}
        match fields.get("prompt"):
            case [list() | str() as only]:
                fields["prompt"] = only
        if isinstance(stop := fields.get("stop"), str):
            fields["stop"] = [stop]
        return fields

    @field_validator("stop")
    @classmethod
    def _stop(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("`stop` must not contain an empty string")
        return stop

    @property
    def held_back(self) -> int:
        """Number of characters to hold back at the end of a text, because they may be the beginning of a stop string."""
        return max(map(len, self.stop), default=1) - 1


def read_request(body: bytes) -> CompletionRequest:
    """Parse a request body. Raises BadRequest with the first error."""
    try:
        return CompletionRequest.model_validate(from_json(body))
    except ValidationError as error:
        raise BadRequest(_error_message(error.errors(include_url=False)[0])) from None
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None


def _error_message(first: ErrorDetails) -> str:
    where = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "value_error":
            return str(first["ctx"]["error"])
        case "extra_forbidden":
            return f"`{where}` is not supported; the fields are {', '.join(CompletionRequest.model_fields)}"
        case _:
            return f"`{where}`: {first['msg']}"


@dataclass(frozen=True)
class ServedModel:
    """Name, tokenizer and limits of the served model."""

    name: str
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    eos_ids: tuple[int, ...]
    started: int = field(default_factory=lambda: int(time.time()))
    _texts: dict[int, str] = field(default_factory=dict)
    _grammars: TokenGrammars = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grammars", TokenGrammars(self.tokenizer, self.vocab_size, self.eos_ids))

    def generation(self, request: CompletionRequest, prompt: list[int]) -> GenerationRequest:
        """Build the GenerationRequest. Raises NotFound or BadRequest if this model cannot serve the request.

        If the request has a grammar, the call takes up to a second.
        """
        self._check(request, prompt)
        eos = () if request.ignore_eos else self.eos_ids
        stops = StopTokens(eos[0] if eos else None, frozenset((*eos[1:], *request.stop_token_ids)))
        structured = request.structured_outputs
        return GenerationRequest(
            prompt=prompt,
            params=SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=max(request.top_k, 0),
                seed=secrets.randbits(64) if request.seed is None else request.seed,
                top_logprobs=request.logprobs or 0,
            ),
            max_tokens=min(request.max_tokens, self.max_model_len - len(prompt)),
            stops=stops,
            stop_strings=StopStringMatcher(request.stop, self.text_stream(request)) if request.stop else None,
            grammar=self._grammars.compile(structured, stops.others) if structured is not None else None,
        )

    def _check(self, request: CompletionRequest, prompt: list[int]) -> None:
        if request.model != self.name:
            raise NotFound(f"The model `{request.model}` does not exist; this server has `{self.name}`.")
        if not prompt:
            raise BadRequest("The prompt is empty; it needs at least one token.")
        if len(prompt) >= self.max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your request has "
                f"{len(prompt)} input tokens. Please reduce the length of the input."
            )
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise BadRequest(f"The prompt has ids outside of the vocabulary; valid ids are 0 to {self.vocab_size - 1}.")

    def text_stream(self, request: CompletionRequest) -> TextStream:
        return TextStream(self.tokenizer, skip_special_tokens=request.skip_special_tokens)

    def token_text(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.tokenizer.decode([token], skip_special_tokens=False)
        return text


class CompletionBuilder:
    """Builds the response to one request, whole or in chunks."""

    def __init__(self, served: ServedModel, request: CompletionRequest, generation: GenerationRequest) -> None:
        self._served = served
        self._request = request
        self._generation = generation
        self._decoding = served.text_stream(request)
        self._length = 0
        """Number of characters decoded so far."""
        self._held = ""
        self._first = True
        self._created = int(time.time())

    def body(self, steps: Sequence[StepResult]) -> dict[str, Any]:
        """Return a chunk with these steps."""
        draws = [step.draw for step in steps if step.draw]
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None if self._request.logprobs is None else self._logprobs(draws),
            "text": self._text(steps),
            "finish_reason": steps[-1].finish_reason,
            "stop_reason": steps[-1].stop_reason,
        }
        if self._request.return_token_ids:
            choice["prompt_token_ids"] = self._generation.prompt if self._first else None
            choice["token_ids"] = [draw.token for draw in draws]
        self._first = False
        return self._envelope([choice])

    def whole(self, steps: Sequence[StepResult]) -> dict[str, Any]:
        """Return all steps as one response. The response has the `version_spans` if there is more than one span."""
        spans = version_spans(steps)
        mixed = {"rollyard_weights": spans} if len(spans) > 1 else {}
        return {**self.body(steps), "usage": self._usage(), **mixed}

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk, which has no choices. `stream_options.include_usage` requests it."""
        return {**self._envelope([]), "usage": self._usage()}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._request.request_id}",
            "object": "text_completion",
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, drawn = len(self._generation.prompt), self._generation.drawn
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
            "prompt_tokens_details": {"cached_tokens": self._generation.cached},
        }

    def _text(self, steps: Sequence[StepResult]) -> str:
        """Return the text that can be sent.

        The text ends before the stop token or stop string; with `include_stop_str_in_output`, after the stop token or
        string. The ids include the stop token in both cases. Characters after a stop string are never sent.
        """
        last, asked = steps[-1], self._request
        tokens = [step.draw.token for step in steps if step.draw]
        if last.finish_reason == "stop" and not isinstance(last.stop_reason, str):
            tokens = tokens if asked.include_stop_str_in_output else tokens[:-1]
        new = "".join(self._decoding.add(token) for token in tokens)
        self._length += len(new)
        text, self._held = self._held + new, ""
        if isinstance(last.stop_reason, str):
            end = text.index(last.stop_reason) + len(last.stop_reason) * asked.include_stop_str_in_output
            return text[:end]
        if last.finish_reason is None:
            sent = max(0, len(text) - asked.held_back)
            text, self._held = text[:sent], text[sent:]
        return text

    def _logprobs(self, draws: Sequence[Draw]) -> dict[str, Any]:
        """Build the logprobs. Call this before `_text`, because `_text` changes the number of decoded characters."""
        texts, offsets, tops, offset = [], [], [], self._length
        for draw in draws:
            texts.append(self._name(draw.token))
            offsets.append(offset)
            offset += len(self._served.token_text(draw.token))
            likely = {draw.token: draw.logprob, **dict(draw.top)}
            tops.append({self._name(token): logprob for token, logprob in likely.items()})
        logprobs = [draw.logprob for draw in draws]
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._request.return_tokens_as_token_ids else self._served.token_text(token)


def version_spans(steps: Sequence[StepResult]) -> list[dict[str, Any]]:
    """Return [{version, start, end}]. `start` and `end` are indices of sampled tokens; `end` is not included.

    Tokens from weights without a version name are in no span.
    """
    spans: list[dict[str, Any]] = []
    versions = [step.version for step in steps if step.draw]
    for at, version in enumerate(versions):
        if spans and spans[-1]["version"] == version and spans[-1]["end"] == at:
            spans[-1]["end"] = at + 1
        elif version:
            spans.append({"version": version, "start": at, "end": at + 1})
    return spans


def error_body(error: ApiError) -> dict[str, Any]:
    """Build an error body in vLLM's format."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 413: "BadRequestError", 503: "ServiceUnavailableError"}
    kind = kinds.get(error.code, "InternalServerError")
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}

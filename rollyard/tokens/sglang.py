"""SGLang's `/generate`, the route of it that takes and gives token ids, told in the words of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.kinds.rollout import Sampling

PATH = "/generate"


def body(prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]) -> dict[str, Any]:
    params: dict[str, Any] = {"max_new_tokens": max_tokens, "stop_token_ids": list(stop_ids)}
    params |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.top_k is not None:
        params["top_k"] = sampling.top_k
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return {"input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True, "stream": True}


class Chunks:
    """Its events tell all tokens so far, or, as the server was started, only the new ones; here always the new ones."""

    def __init__(self) -> None:
        self._seen = 0

    def read(self, event: Any) -> Any:
        """An event as a chunk of `/v1/completions`. Raises ValueError when the counts do not add up."""
        if not isinstance(event, dict) or "meta_info" not in event:
            return event  # an error has the same shape in both
        meta = event["meta_info"]
        told, total = meta.get("output_token_logprobs"), meta.get("completion_tokens")
        reason = (meta.get("finish_reason") or {}).get("type")
        if told is None:
            return {"choices": [{"finish_reason": reason}]}
        new = told[self._seen :] if len(told) == total else told
        if self._seen + len(new) != total:
            raise ValueError(f"{self._seen} tokens and {len(new)} more are not the {total} that it counts")
        self._seen += len(new)
        ids, logprobs = [token[1] for token in new], [token[0] for token in new]
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}]}

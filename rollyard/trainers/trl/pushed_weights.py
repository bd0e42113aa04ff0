"""Pushes weights from TRL's trainers to a pool. Each push returns when each endpoint serves the new version or has
failed to load it. A push raises NoProgress if no endpoint serves the new version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from rollyard.client.sync_client import BlockingWeightsPush


class PushWeights(TrainerCallback):  # type: ignore[misc]
    """Callback of a `GRPOTrainer`: pushes the weights before the first step and after each step.

    If there are several training processes, the first process pushes and the others wait.
    """

    def __init__(self, weights: BlockingWeightsPush) -> None:
        """`weights`: from `with client.weights(POOL) as weights`."""
        self._weights = weights
        self.version: str | None = None
        """Version of the last successful push; None before the first push."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """Push the weights before the first step, because the pool may still serve the weights of another run."""
        self._push(state, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self._push(state, model)

    def _push(self, state: Any, model: Any) -> None:
        outcome: list[str | Exception | None] = [None]
        if state.is_world_process_zero:
            try:
                outcome = [self._weights.push(whole_model(model))]
            except Exception as error:  # noqa: BLE001  the other processes wait for the result
                outcome = [error]
        (outcome_of_first,) = broadcast_object_list(outcome)
        if isinstance(outcome_of_first, Exception):
            raise outcome_of_first
        self.version = outcome_of_first


def whole_model(model: Any) -> Any:
    """Return a model without a LoRA adapter unchanged. Else return its tensors by name, with the adapter merged in."""
    if not hasattr(model, "merge_adapter"):
        return model
    model.merge_adapter()
    try:
        return {name: tensor.detach().clone() for name, tensor in merged_tensors(model)}
    finally:
        model.unmerge_adapter()


def merged_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a peft model, except the adapter's, under their names in the base model."""
    for name, tensor in model.named_parameters():
        if model.prefix not in name and "original_module" not in name:
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield plain.replace("modules_to_save.default.", ""), tensor


class WeightTransfer:
    """`weight_transfer` of an `AsyncGRPOTrainer`.

    `pause` and `resume` do nothing, because the pool itself pauses requests while the weights change.
    """

    def __init__(self, weights: BlockingWeightsPush) -> None:
        """`weights`: from `with client.weights(POOL) as weights`."""
        self._weights = weights
        self._numbers: dict[str, int] = {}

    def number(self, version: str) -> int:
        """Return which push of this object made a version: 1 for the first push; 0 if no push of this object made it."""
        return self._numbers.get(version, 0)

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Push the tensors. All of them are in memory at the same time."""
        version = f"step{self._weights.step + 1}"
        # Set before the push: tokens of this version may arrive before the push returns.
        self._numbers[version] = len(self._numbers) + 1
        self._weights.push({name: tensor.detach().cpu() for name, tensor in iterator}, version)

    def resume(self) -> None:
        pass

    def destroy(self) -> None:
        pass

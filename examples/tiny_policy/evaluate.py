"""A quick measurement without the service: held-out tasks, tools in-process, tokens sampled by transformers.

It checks the policy, not the service: the published rewards are measured through real sandboxes.

    python -m examples.tiny_policy.evaluate --model examples/tiny_policy/model --tasks 400
"""

from __future__ import annotations

import argparse
import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from examples.tiny_policy.families import Task, sample_code, sample_math
from examples.tiny_policy.offline import Toolbox
from examples.tiny_policy.template import Setting
from examples.tiny_policy.trajectories import CODE, MATH
from rollyard.tasks import tool_results
from rollyard.tokens.tool_calls.hermes import FORM

MAX_TURNS = 6
MAX_TURN_TOKENS = 160
BATCH = 100
FAMILIES = {"math": (MATH, sample_math), "code": (CODE, sample_code)}
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)


@dataclass
class Attempt:
    """One task in progress: its conversation so far and the state of its tools."""

    task: Task
    setting: Setting
    messages: list[dict[str, str]] = field(default_factory=list)
    box: Toolbox = field(default_factory=Toolbox)
    done: bool = False

    def __post_init__(self) -> None:
        self.messages += [
            {"role": "system", "content": self.setting.system},
            {"role": "user", "content": self.task["problem"]},
        ]

    @property
    def turns(self) -> int:
        return sum(message["role"] == "assistant" for message in self.messages)

    def advance(self, reply: str) -> None:
        """Process the policy's reply: run its call, or end."""
        self.messages.append({"role": "assistant", "content": reply})
        if "<tool_call>" in reply:
            self.messages.append({"role": "tool", "content": self._call(reply)})
        else:
            self.done = True

    def _call(self, reply: str) -> str:
        match = CALL.search(reply)
        if match is None:
            return tool_results.malformed_call_result("the closing tag </tool_call> is missing", FORM)
        try:
            call = json.loads(match[1])
            name, arguments = call["name"], call["arguments"]
            if name == "ipython":
                return self.box.ipython(str(arguments["code"]))
            if name == "bash":
                return self.box.bash(str(arguments["command"]))
        except (ValueError, KeyError, TypeError) as error:
            return tool_results.malformed_call_result(str(error), FORM)
        return tool_results.unknown_tool_result(name, ["bash", "ipython"])

    def succeeded(self) -> bool:
        if not self.done:
            return False
        if self.task["kind"] == "code":
            return self.box.passes(self.task["solution"], self.task["cases"])
        boxed = re.findall(r"\\boxed\{([^{}]*)\}", self.messages[-1]["content"])
        return bool(boxed) and boxed[-1] == self.task["answer"]


class Policy:
    """The model of a folder, in float32 as the embedded engine runs it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def replies(self, attempts: list[Attempt], temperature: float) -> list[str]:
        """Return one assistant turn each; greedy at temperature 0."""
        prompts = [
            self.tokenizer.apply_chat_template(
                a.messages, tools=list(a.setting.tools), add_generation_prompt=True, tokenize=False
            )
            for a in attempts
        ]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            # top_k 0: otherwise transformers cuts the distribution to 50 tokens.
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=MAX_TURN_TOKENS, **sampling)
        texts = self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return [str(text) for text in texts]


def attempt_all(policy: Policy, kind: str, tasks: int, temperature: float, seed: int) -> list[Attempt]:
    """Let the policy work on held-out tasks of one kind until each has ended or used up its turns."""
    setting, sample = FAMILIES[kind]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    attempts = [Attempt(sample(rng, True), setting) for _ in range(tasks)]
    for start in range(0, tasks, BATCH):
        live = attempts[start : start + BATCH]
        while live := [a for a in live if not a.done and a.turns < MAX_TURNS]:
            for attempt, reply in zip(live, policy.replies(live, temperature), strict=True):
                attempt.advance(reply)
    return attempts


def evaluate_folder(folder: Path, tasks: int, temperature: float, seed: int = 7) -> dict[str, float]:
    """Return the share of solved held-out tasks, by kind."""
    policy = Policy(folder)
    return {
        kind: sum(a.succeeded() for a in attempt_all(policy, kind, tasks, temperature, seed)) / tasks
        for kind in FAMILIES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--show", type=int, default=0, help="print this many failed conversations of each kind")
    args = parser.parse_args()
    policy = Policy(args.model)
    for kind in FAMILIES:
        attempts = attempt_all(policy, kind, args.tasks, args.temperature, args.seed)
        print(f"{kind}: {sum(a.succeeded() for a in attempts)} of {args.tasks}")
        for attempt in [a for a in attempts if not a.succeeded()][: args.show]:
            print(json.dumps({"task": attempt.task, "messages": attempt.messages}, indent=1))


if __name__ == "__main__":
    main()

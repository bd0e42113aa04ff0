"""Environments with `reset` and `step`, as users write them. They import nothing of Rollyard."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from typing import Any


class Sums:
    """Asks one sum after another. Each right answer in a box earns half a point; the third question is the last."""

    def __init__(self, questions: int = 3) -> None:
        self.left = questions

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.numbers = random.Random(seed)
        return self.question(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = f"\\boxed{{{self.sum}}}" in action
        self.left -= 1
        print("this line is not an answer", flush=True)
        return ("" if self.left == 0 else self.question()), 0.5 * right, self.left == 0, False, {}

    def question(self) -> str:
        a, b = self.numbers.randrange(10, 99), self.numbers.randrange(10, 99)
        self.sum = a + b
        return f"What is {a} + {b}?"


class NamedSums(Sums):
    """Shows its name before its first question."""

    def __init__(self, name: str, questions: int) -> None:
        super().__init__(questions)
        self.name = name

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        question, info = super().reset(seed)
        return f"{self.name}: {question}", info


class Opened(Sums):
    """Opens with messages of its own."""

    opening_messages = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "Begin."})


class SecondTry(Sums):
    """Ends its process in the second step while the file is there, and removes the file."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.left == 2 and os.path.exists(self.file):
            os.unlink(self.file)
            os._exit(3)
        return super().step(action)


class Ledger:
    """Replies with a digest of its secret and of all that was said, which also gives the reward. It can be saved."""

    def __init__(self, name: str, steps: int, gate: str = "/") -> None:
        """`gate`: file for which the last step but one waits."""
        self.name, self.steps, self.gate = name, steps, gate

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.secret, self.said = random.Random(seed).randrange(1 << 30), list[str]()
        return f"{self.name}: the secret is {self.secret}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        while len(self.said) == self.steps - 1 and not os.path.exists(self.gate):
            time.sleep(0.05)
        digest = hashlib.sha256(repr((self.secret, self.said)).encode()).hexdigest()
        return digest, int(digest[:4], 16) / 0xFFFF, len(self.said) == self.steps, False, {}

    def state(self) -> Any:
        return {"secret": self.secret, "said": self.said}

    def restore(self, state: Any) -> None:
        self.secret, self.said = state["secret"], state["said"]


class Forgetful(Ledger):
    state = restore = None  # type: ignore[assignment]


class Unsavable(Ledger):
    """Saves itself in the way that its name says."""

    def state(self) -> Any:
        match self.name:
            case "raises":
                raise LookupError("no such page")
            case "async":
                return asyncio.sleep(0)
            case "object":
                return object()
            case "long":
                return "x" * (1 << 20)
            case "exit":
                os._exit(3)

    def restore(self, state: Any) -> None:
        raise LookupError("no such page")


class Older:
    """Has the older Gym's four values, observations that are not text, and GEM's texts around observations."""

    def reset(self) -> dict[str, int]:
        return {"at": 0}

    def step(self, action: str) -> tuple[Any, Any, bool, dict[str, Any]]:
        return {"at": action}, None, False, {"prefix": "before", "suffix": "after", "use_tool": True}


class Broken:
    """Does at its step what its argument names."""

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, seed: int) -> str:
        if self.how == "reset":
            raise LookupError("no such level")
        return "begin"

    def step(self, action: str) -> Any:
        match self.how:
            case "raise":
                raise LookupError("no such move")
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(600)
            case "shape":
                return "only an observation"
            case "nan":
                return "x", float("nan"), False, False, {}
            case "async":
                return asyncio.sleep(0)
            case "long":
                return "x" * (1 << 21), 0.0, False, False, {}
        return "x", "many points", False, False, {}

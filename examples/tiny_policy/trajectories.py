"""Training data of the policy: whole conversations with the tools' real answers, and plain copying exercises.

Nine in ten open exactly as Rollyard's task kinds do. A few contain a mistake, the error that answers it, and the
correction; the mistake itself is never trained on.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable

from examples.tiny_policy.families import CodeProblem, MathProblem, Problem, draw_code, draw_math
from examples.tiny_policy.offline import Toolbox
from examples.tiny_policy.template import TURN_END, Message, Part, Setting, tool_call
from rollyard.tasks import system_prompts, tool_results, tool_schemas
from rollyard.tokens.tool_calls.hermes import FORM

MATH = Setting(system_prompts.MATH, (tool_schemas.IPYTHON,))
CODE = Setting(system_prompts.CODE, (tool_schemas.BASH, tool_schemas.EDITOR))
OTHER_SHARE = 0.1
REFUSED_SHARE = 0.03
FAILED_SHARE = 0.03

OTHER_PROMPTS = ["", "You solve tasks with tools.", "Use the tools.", system_prompts.MATH, system_prompts.CODE]
NOISE = "0123456789+-*() :,x"


def draw_setting(rng: random.Random) -> Setting:
    if rng.random() >= OTHER_SHARE:
        return rng.choice([MATH, CODE])
    tools = list(tool_schemas.SCHEMAS.values())
    chosen = rng.sample(tools, rng.randint(1, len(tools)))
    if tool_schemas.EDITOR in chosen and len(chosen) == 1:
        chosen.append(tool_schemas.BASH)
    return Setting(rng.choice(OTHER_PROMPTS), tuple(chosen))


def draw_problem(rng: random.Random, setting: Setting) -> Problem:
    """Draw a problem of the training part that the setting's tools can solve."""
    solvable: list[Callable[[random.Random, bool], Problem]] = []
    if tool_schemas.IPYTHON in setting.tools:
        solvable.append(draw_math)
    if tool_schemas.BASH in setting.tools:
        solvable.append(draw_code)
    return rng.choice(solvable)(rng, False)


def conversation(problem: Problem, rng: random.Random) -> list[Message]:
    """Return the messages after the system prompt, from the user's message to the final answer."""
    work = _math(problem, rng) if isinstance(problem, MathProblem) else _code(problem, rng)
    return [Message("user", problem.text), *work]


def exercise(rng: random.Random) -> list[Part]:
    """Make a copying exercise without chat: a dense signal, from which heads that copy numbers form early."""
    kind = rng.random()
    if kind < 0.5:
        question = answer = "".join(rng.choices("0123456789", k=rng.randint(1, 12)))
    elif kind < 0.8:
        calculation = draw_math(rng, False)
        question, answer = calculation.text, calculation.expression
    else:
        function = draw_code(rng, False)
        question, answer = function.text, f"{function.path} {function.source}"
    return [Part(question + "\n", False), Part(answer + TURN_END, True)]


def _math(problem: MathProblem, rng: random.Random) -> list[Message]:
    box = Toolbox()
    call = {"code": problem.expression}
    messages = []
    if rng.random() < REFUSED_SHARE:
        messages += _refused("ipython", call, rng)
    elif rng.random() < FAILED_SHARE:
        bad, _ = _spoil(problem.expression, ast.parse, rng)
        messages += _unlearned("ipython", {"code": bad}, box.ipython(bad))
    result = box.ipython(problem.expression)
    if rng.random() < OTHER_SHARE:
        result = f"Out[{box.cells}]: {result}"
    messages += _learned("ipython", call, result)
    return [*messages, Message("assistant", f"The answer is \\boxed{{{problem.answer}}}.", trained=True)]


def _code(problem: CodeProblem, rng: random.Random) -> list[Message]:
    box = Toolbox()
    write = {"command": _heredoc(problem.path, problem.source)}
    check = {"command": f"python3 -m py_compile {problem.path} && echo OK"}
    messages = []
    if rng.random() < REFUSED_SHARE:
        messages += _refused("bash", write, rng)
    elif rng.random() < FAILED_SHARE:
        bad, _ = _spoil(problem.source, ast.parse, rng)
        command = _heredoc(problem.path, bad)
        messages += _unlearned("bash", {"command": command}, box.bash(command))
        messages += _learned("bash", check, box.bash(check["command"]))
    for call in (write, check):
        messages += _learned("bash", call, box.bash(call["command"]))
    return [*messages, Message("assistant", "The file is written and compiles.", trained=True)]


def _heredoc(path: str, source: str) -> str:
    return f"cat > {path} <<'EOF'\n{source}\nEOF"


def _learned(tool: str, arguments: dict[str, str], result: str) -> list[Message]:
    return [Message("assistant", tool_call(tool, arguments), trained=True), Message("tool", result)]


def _unlearned(tool: str, arguments: dict[str, str], result: str) -> list[Message]:
    return [Message("assistant", tool_call(tool, arguments)), Message("tool", result)]


def _refused(tool: str, arguments: dict[str, str], rng: random.Random) -> list[Message]:
    """Return a call with broken JSON, and its refusal."""
    good = json.dumps({"name": tool, "arguments": arguments})
    bad, error = _spoil(good, json.loads, rng)
    return [
        Message("assistant", tool_call(tool, arguments).replace(good, bad)),
        Message("tool", tool_results.malformed_call_result(str(error), FORM)),
    ]


def _spoil(text: str, parse: Callable[[str], object], rng: random.Random) -> tuple[str, SyntaxError | ValueError]:
    """Remove, add or replace one character so that `parse` refuses the text; return it and the refusal."""
    while True:
        place = rng.randrange(len(text))
        added, kept = rng.choice([("", 1), (rng.choice(NOISE), 0), (rng.choice(NOISE), 1)])
        bad = text[:place] + added + text[place + kept :]
        try:
            parse(bad)
        except (SyntaxError, ValueError) as error:
            return bad, error

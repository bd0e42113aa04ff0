"""The messages of the task kind `stem`. Policies are trained on these texts. Pure."""

from __future__ import annotations

from rollyard.kinds.stem_task import LETTERS, StemTask

_ONE = "Answer with the letter of the right option in \\boxed{}."
_SEVERAL = "More than one option may be right. Answer with all their letters in \\boxed{}, such as \\boxed{A, C}."
_EXPRESSION = "Answer with the final expression in \\boxed{}."
_OPEN = "End your reply with a line that begins with `Answer:` and has the answer alone, without its derivation."


def question(task: StemTask) -> str:
    """Return the question, with the options and the form of the answer."""
    options = [f"{letter}. {option}" for letter, option in zip(LETTERS, task.options, strict=False)]
    return "\n\n".join(filter(None, [task.question, "\n".join(options), _form(task)]))


def _form(task: StemTask) -> str:
    if task.form == "number":
        unit = f" in {task.unit}" if task.unit else ""
        figures = f", to {task.significant_figures} significant figures" if task.significant_figures else ""
        return f"Answer with one number{unit}{figures}, in \\boxed{{}}."
    if task.form == "choice":
        return _SEVERAL if task.several else _ONE
    return _EXPRESSION if task.form == "expression" else _OPEN


def reference_answer(task: StemTask) -> str:
    """Return the right answer in the form that the question asks for."""
    if task.form == "open":
        return f"Answer: {task.answer}"
    answer = ", ".join(task.letters) if task.form == "choice" else task.answer
    return f"\\boxed{{{answer}{f' {task.unit}' if task.unit else ''}}}"

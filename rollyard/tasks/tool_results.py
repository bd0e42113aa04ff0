"""The exact texts of tools' results that a model reads.

Policies are trained on these exact strings, so a change of a string changes the environment.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_RESULT_CHARS = 16_000


def shorten(text: str) -> str:
    """Keep the beginning and the end of a long output, because these parts usually contain the errors."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    half = MAX_RESULT_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def bash_result(
    output: str,
    exit_code: int | None,
    *,
    timed_out_after: float | None = None,
    restarted: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """Return the text that the model reads after a bash call. `exit_code` is None if the command did not end by itself.
    `notes`: sentences about the sandbox's limits."""
    lines = [shorten(output.rstrip("\n"))] if output.strip() else []
    if timed_out_after is not None:
        lines.append(f"[timed out after {timed_out_after:g} s and was stopped]")
    elif exit_code:
        lines.append(f"[exit code {exit_code}]")
    if restarted:
        lines.append("[the shell ended and was started anew; its state is lost]")
    lines += [f"[{note}]" for note in notes]
    return "\n".join(lines) or "(no output)"


def ipython_result(
    output: str, *, timed_out_after: float | None = None, restarted: bool = False, notes: Sequence[str] = ()
) -> str:
    """Return the text that the model reads after a cell. `output`: the printed text, then the value or the traceback. A
    long `output` is shortened. Notes on a time-out and on a restart, and `notes` about the sandbox's
    limits, follow."""
    lines = [shorten(output.rstrip("\n"))] if output.strip() else []
    if timed_out_after is not None:
        lines.append(f"[timed out after {timed_out_after:g} s and was stopped]")
    if restarted:
        lines.append("[the Python process ended and was started anew; its state is lost]")
    lines += [f"[{note}]" for note in notes]
    return "\n".join(lines) or "(no output)"


def malformed_call_result(why: str, form: str) -> str:
    """Return the reply to a tool call that cannot be parsed or has wrong arguments. `form` describes how to write a
    call."""
    return f"Error: invalid tool call: {why}. {form}"


def unknown_tool_result(name: str, offered: list[str]) -> str:
    if not offered:
        return f"Error: there is no tool {name!r}: this task has no tools. Answer in text."
    return f"Error: there is no tool {name!r}; the tools are: {', '.join(offered)}."

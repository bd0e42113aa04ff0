"""Requests of `submit` and `try`: tasks from a file, with the sampling parameters of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pydantic
from pydantic_core import from_json

from rollyard.cli.text_files import read_text
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import ApiError, BadRequest, Invalid, RollyardError
from rollyard.kinds.rollout import RolloutRequest, Sampling
from rollyard.kinds.schema.validation import problems_of
from rollyard.kinds.values.image_reference import below, parse_image

BATCH = 256
EXAMPLE = 'a task is JSON such as {"kind": "math", "problem": "What is 12 + 30?", "answer": "42"}'
_AT_ITEM = re.compile(r"rollouts\[(\d+)\](?:\.|$)")
"""Start of the path of a wrong field in the API's answer to a submit. The number is the index of the request."""


@dataclass(frozen=True)
class NumberedRequest:
    """A request and the line number of its task."""

    line: int
    request: RolloutRequest


def sampling_of(temperature: float | None, words: Sequence[str]) -> dict[str, Any]:
    """Parse sampling parameters of `--temperature` and `--sampling NAME=VALUE`. Raises BadRequest, Invalid."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadRequest(f"--sampling {word}: write NAME=VALUE, such as max_tokens=512")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    if temperature is not None:
        found["temperature"] = temperature
    try:
        Sampling.model_validate(found)
    except pydantic.ValidationError as error:
        problems = "; ".join(str(problem) for problem in problems_of(Sampling, error))
        raise Invalid(f"--sampling: {problems}") from None
    return found


def given_image(text: str, folder: str) -> str:
    """Return the name of --image in normal form; a relative path is below `folder`. Raises click.UsageError."""
    try:
        return below(folder, parse_image(text)).text
    except ValueError as error:
        raise click.UsageError(f"--image: {error}") from None


def read_tasks(file: str, prefix: str, given: dict[str, Any], image: str | None = None) -> list[NumberedRequest]:
    """Read one request from each line of a file, with the id `<prefix>-<line number>`. Skip blank lines.

    `image`: sandbox image of the tasks that name none.

    Raises BadRequest, or Invalid with the numbers of the first 10 wrong lines.
    """
    found: list[NumberedRequest] = []
    wrong: list[str] = []
    source = "<stdin>" if file == "-" else file
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(NumberedRequest(number, _request(line, {**given, "id": f"{prefix}-{number}"}, image)))
        except Invalid as error:
            wrong.append(f"{source}:{number}: {error}")
    if wrong:
        more = f"\n… and {len(wrong) - 10} more lines" if len(wrong) > 10 else ""
        raise Invalid("\n".join(wrong[:10]) + f"{more}\nnothing was submitted; {EXAMPLE}")
    if not found:
        raise BadRequest(f"{source} contains no task; {EXAMPLE}")
    return found


def read_task(text_or_file: str, given: dict[str, Any]) -> RolloutRequest:
    """Read one task from JSON text, or from a file with JSON. Raises BadRequest, Invalid."""
    text = text_or_file if text_or_file.lstrip().startswith("{") else read_text(str(Path(text_or_file)))
    try:
        return _request(text, given)
    except Invalid as error:
        raise Invalid(f"this is not a task: {error}; {EXAMPLE}") from None


async def submit_batches(
    client: AsyncClient, namespace: str, numbered: Sequence[NumberedRequest], source: str, sent: list[str]
) -> None:
    """Submit the requests, BATCH of them in one call. Append the ids of each accepted call to `sent`.

    Raises ApiError of the first refused call, with the line numbers of the wrong tasks.
    """
    for start in range(0, len(numbered), BATCH):
        batch = numbered[start : start + BATCH]
        try:
            sent += await client.submit([n.request for n in batch], namespace)
        except ApiError as error:
            raise _error_at_line(error, batch, source) from None


def _request(text: str, given: dict[str, Any], image: str | None = None) -> RolloutRequest:
    """Build a request. Raises Invalid."""
    try:
        task = from_json(text)
        if image is not None and isinstance(task, dict):
            task["image"] = task.get("image") or image
        return RolloutRequest.model_validate({**given, "task": task})
    except pydantic.ValidationError as error:
        raise Invalid("; ".join(str(problem) for problem in problems_of(RolloutRequest, error))) from None
    except ValueError as error:
        raise Invalid(f"this is not valid JSON: {error}") from None


def _error_at_line(error: ApiError, batch: Sequence[NumberedRequest], source: str) -> RollyardError:
    """Return the server's error with the file's line numbers instead of the positions in the batch.

    Return the error unchanged if it has no causes, or if a cause has no position.
    """
    lines = []
    for cause in error.causes:
        match = _AT_ITEM.match(cause.field)
        if match is None or int(match[1]) >= len(batch):
            return error
        field = cause.field[match.end() :]
        lines.append(f"{source}:{batch[int(match[1])].line}: {f'{field}: ' if field else ''}{cause.message}")
    return type(error)("\n".join(lines), causes=error.causes) if lines else error

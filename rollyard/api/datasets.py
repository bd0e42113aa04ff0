"""Routes of datasets: upload as JSON lines, list, read, delete."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import pydantic
from aiohttp import hdrs, web

from rollyard.api import request_bodies
from rollyard.api.query_parameters import accepts, integer, namespace_of
from rollyard.api.services import SERVICES
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import BadRequest, Cause, Invalid, NotFound
from rollyard.kinds.batch import BatchName, DatasetHistory, DatasetView
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.schema.validation import MAX_REPORTED, problems_of
from rollyard.kinds.task import Task
from rollyard.server.batches.task_lines import MAX_TASK_LINE_BYTES
from rollyard.store.batch_records import DatasetRecord

MAX_BYTES = 256 << 20
_UPLOADS = web.AppKey("dataset-uploads", ByteBudget)
"""Limit on the total bytes of the uploads that are in the server's memory at the same time."""
MAX_READ_TASKS = 500
"""Greatest number of tasks in one answer."""
LINES_A_TURN = 200
SCANNED_LINES_A_TURN = 50_000
"""Number of tasks that the parser thread reads, and of lines that it looks at, before it lets other work run."""
_NAME = pydantic.TypeAdapter(BatchName)


def set_up(app: web.Application) -> None:
    app[_UPLOADS] = ByteBudget(MAX_BYTES)


def routes() -> list[web.RouteDef]:
    return [
        web.put("/v1/datasets/{name}", _put),
        web.get("/v1/datasets", _list),
        web.get("/v1/datasets/{name}", _get),
        web.get("/v1/datasets/{name}/tasks", _tasks),
        web.delete("/v1/datasets/{name}", _delete),
    ]


@accepts("namespace")
async def _put(request: web.Request) -> web.Response:
    """Upload a dataset as JSON lines, one task a line. The answer is 201 for a new dataset, and 200 if the
    dataset already exists with the same tasks."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    name = _checked_name(request.match_info["name"])
    size = request.content_length
    if size is None or hdrs.CONTENT_ENCODING in request.headers:
        size = MAX_BYTES
    tasks: list[str] = []
    kinds: set[str] = set()
    async with request.app[_UPLOADS].reserve(min(size, MAX_BYTES)):
        data = await request_bodies.read(request, MAX_BYTES)
        numbered = enumerate(io.BytesIO(data), start=1)
        while (found := await request_bodies.run_in_parser_thread(_read_portion, numbered)) is not None:
            tasks += [text for _, text in found]
            kinds |= {kind for kind, _ in found}
    if not tasks:
        raise Invalid(
            'the dataset is empty; send one task a line, such as {"kind": "math", "problem": "1+1=?", "answer": "2"}'
        )
    record, new = await services.batches.put_dataset(namespace, name, tasks, kinds)
    return web.json_response(_view(record), status=201 if new else 200)


def _read_portion(numbered: Iterator[tuple[int, bytes]]) -> list[tuple[str, str]] | None:
    """Read the next lines; return None after the last. A body may have millions of empty lines."""
    lines: list[tuple[int, bytes]] = []
    is_over = True
    for number, line in islice(numbered, SCANNED_LINES_A_TURN):
        is_over = False
        if line.strip():
            lines.append((number, line))
        if len(lines) == LINES_A_TURN:
            break
    return None if is_over else read_lines(lines)


def read_lines(numbered: Iterable[tuple[int, bytes]]) -> list[tuple[str, str]]:
    """Return the kind and the canonical text of each line's task. Empty lines are left out.

    Raises Invalid with the numbers of the first wrong lines, at most MAX_REPORTED.
    """
    found: list[tuple[str, str]] = []
    wrong: list[Cause] = []
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            task = _read_line(line)
            found.append((task.kind, task.canonical()))
        except Invalid as error:
            wrong.append(Cause(f"line {number}", str(error)))
            if len(wrong) >= MAX_REPORTED:
                break
    if wrong:
        listed = "; ".join(f"{c.field}: {c.message}" for c in wrong)
        raise Invalid(f"the dataset is invalid, and nothing was stored: {listed}", causes=wrong)
    return found


def _read_line(line: bytes) -> Task:
    if len(line) > MAX_TASK_LINE_BYTES:
        raise Invalid(f"a task may have at most {MAX_TASK_LINE_BYTES} bytes; put large data into the image")
    if not request_bodies.has_few_values(line):
        raise Invalid(f"a task may have at most {request_bodies.MAX_VALUES} values; put large data into the image")
    try:
        task = Task.model_validate(request_bodies.load_json(line))
    except pydantic.ValidationError as error:
        raise Invalid("; ".join(map(str, problems_of(Task, error)))) from None
    except ValueError as error:
        raise Invalid(f"this is not valid JSON: {error}") from None
    check_task(task)
    return task


@accepts("namespace")
async def _list(request: web.Request) -> web.Response:
    """List the datasets of a namespace."""
    found = await request.app[SERVICES].store.batches.list_datasets(namespace_of(request))
    return web.json_response({"datasets": [_view(record) for record in found]})


@accepts("namespace")
async def _get(request: web.Request) -> web.Response:
    """Read a dataset's digest and size, and the history of its tasks."""
    found = await _find(request)
    histories = await request.app[SERVICES].store.batches.histories(found.namespace, found.name)
    streaks = Counter(h.streak for h in histories)
    known = DatasetHistory(tasks=len(histories), informative=streaks.pop(0, 0), streaks=dict(sorted(streaks.items())))
    return web.json_response(_view(found, known))


async def _find(request: web.Request) -> DatasetRecord:
    namespace, name = namespace_of(request), request.match_info["name"]
    found = await request.app[SERVICES].store.batches.dataset(namespace, name)
    if found is None:
        raise NotFound(f"dataset {name!r} not found in namespace {namespace!r}")
    return found


@accepts("namespace", "after", "limit")
async def _tasks(request: web.Request) -> web.Response:
    """Read a dataset's tasks as JSON lines, in their order. `after`: number of tasks to leave out."""
    found = await _find(request)
    start, limit = integer(request, "after", 0), integer(request, "limit", MAX_READ_TASKS, least=1)
    tasks = await request.app[SERVICES].store.batches.tasks(found.digest, start, min(limit, MAX_READ_TASKS))
    return web.Response(text="".join(f"{task}\n" for task in tasks), content_type="application/jsonl")


@accepts("namespace")
async def _delete(request: web.Request) -> web.Response:
    """Delete a dataset, the history of its tasks, and the record of which task is drawn next. An ended batch may
    have left unfinished groups of the dataset, with which a later batch would begin. These groups are cancelled."""
    namespace, name = namespace_of(request), request.match_info["name"]
    await request.app[SERVICES].batches.delete_dataset(namespace, name)
    return web.json_response({"name": name})


def _checked_name(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except pydantic.ValidationError:
        raise BadRequest(
            f"{name[:60]!r} is not a name for a dataset: write letters, digits and . _ : - and begin with a letter or digit; "
            "at most 100 characters"
        ) from None


def _view(record: DatasetRecord, history: DatasetHistory | None = None) -> dict[str, object]:
    return DatasetView(
        name=record.name,
        namespace=record.namespace,
        digest=record.digest,
        tasks=record.tasks,
        kinds=list(record.kinds),
        created_at=record.created_at,
        history=history,
    ).model_dump(mode="json")

"""`rollyard export`: rollouts, delivered groups and evaluations as files for other programs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import click

from rollyard import __version__
from rollyard.cli.options import with_client
from rollyard.cli.rollout_lists import conditions, explain_nothing, searched
from rollyard.cli.written_file import say, written_file
from rollyard.client.async_client import AsyncClient
from rollyard.core.clock import as_text
from rollyard.core.errors import BadRequest, NotFound, Unavailable
from rollyard.kinds.rollout import CHECK

if TYPE_CHECKING:
    from rollyard.trajectory.columns import Columns

EVERY = 1000
"""Rollouts between two lines of progress."""
FORMS = {".parquet": "parquet", ".jsonl": "jsonl"}

_output = click.option(
    "-o",
    "--output",
    required=True,
    help="new file; - for standard output. With --format atif: a folder, which gets one file for each rollout",
)
_form = click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "jsonl", "atif"]),
    help="form of the file  [default: that of its name, .parquet or .jsonl]",
)


class Target(Protocol):
    """Place where rollouts are written."""

    def write(self, columns: Columns) -> None: ...


@click.group()
def export() -> None:
    """Write rollouts, groups or evaluations to files. The forms are Parquet, JSON lines, Harbor's ATIF, and HTML."""


@export.command("rollouts")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@searched
@click.option("--limit", type=click.IntRange(1), help="greatest number of rollouts  [default: all]")
@_form
@_output
@with_client
async def rollouts(
    client: AsyncClient,
    namespace: str,
    ids: tuple[str, ...],
    limit: int | None,
    form: str | None,
    output: str,
    **given: Any,
) -> None:
    """Write rollouts that had ended when the command began, except checks of tasks: all, those of these ids, or those that
    match.

    All rollouts, and those of a pool, group, status or prefix, are in the order of their ends. With other conditions they
    are in the order of their submits, and each is read by itself.
    """
    asked = conditions(given)
    if ids and any(asked.values()):
        raise click.UsageError("name rollouts by id, or by conditions, not both")
    if ids:
        await _write(_of_ids(client, namespace, ids), form, output, limit)
        return
    upto, at = await client.newest_cursor()
    told = f", of those that had ended by {as_text(at)}"
    if not await _write(_matching(client, namespace, asked, upto), form, output, limit, told):
        await explain_nothing(client, namespace, given)


async def _of_ids(client: AsyncClient, namespace: str, ids: Sequence[str]) -> AsyncGenerator[Columns]:
    for id in dict.fromkeys(ids):
        _, columns = await client.rollout_columns(id, namespace)
        if columns is None:
            raise BadRequest(f"rollout {id} has not ended yet; export it when it has")
        yield columns


async def _matching(
    client: AsyncClient, namespace: str, asked: Mapping[str, Any], upto: int
) -> AsyncGenerator[Columns]:
    """Yield the rollouts that match and have at most the cursor `upto`. Those that end meanwhile are left out."""
    statuses, prefix = asked["status"], asked["search"].get("prefix", "")
    if asked["metadata"] or asked["suspicious"] or asked["search"].keys() - {"prefix"}:
        async with contextlib.aclosing(client.rollouts(namespace, **asked)) as views:
            async for view in views:
                if view.cursor is not None and view.cursor <= upto and view.mode != CHECK:
                    columns = None
                    with contextlib.suppress(NotFound):  # deleted since
                        _, columns = await client.rollout_columns(view.id, namespace)
                    if columns is not None:
                        yield columns
        return
    stream = client.stream_columns(namespace, pool=asked["pool"], group=asked["group"], upto=upto)
    async with contextlib.aclosing(stream) as found:
        async for _, columns in found:
            wanted = [s["id"].startswith(prefix) and (not statuses or s["status"] in statuses) for s in columns.samples]
            for is_wanted, numbers in itertools.groupby(range(len(wanted)), wanted.__getitem__):
                if is_wanted:
                    some = list(numbers)
                    yield columns.part(some[0], some[-1] + 1)


@export.command("batches")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_form
@_output
@with_client
async def batches(client: AsyncClient, namespace: str, ids: tuple[str, ...], form: str | None, output: str) -> None:
    """Write the rollouts of the groups that batches have delivered so far. The field `delivery` of a rollout is the number of
    its group; groups that are deleted are missing."""

    async def delivered() -> AsyncGenerator[Columns]:
        for id in ids:
            after, upto = 0, (await client.get_batch(id, namespace)).delivered
            while after < upto:
                page = await client.groups(id, namespace, after=after)
                for one in page.groups:
                    about = {"batch": id, "delivery": one.delivery, "staleness": one.staleness}
                    yield one.columns.with_samples([{**sample, **about} for sample in one.columns.samples])
                if page.next <= after:
                    break
                after = page.next

    await _write(delivered(), form, output)


@export.command("html")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--group", help="all rollouts of this group that have ended")
@click.option("-o", "--output", required=True, help="new file, such as rollout.html; - for standard output")
@with_client
async def html(client: AsyncClient, namespace: str, ids: tuple[str, ...], group: str | None, output: str) -> None:
    """Write rollouts as one HTML file to send to somebody: conversation, tool calls, tokens. It has no script and loads
    nothing."""
    from rollyard.trajectory.html_page import ShownTokens, html_page

    chosen = list(ids)
    if group is not None:
        chosen += [view.id async for view in client.rollouts(namespace, group=group) if view.status.terminal]
    if not chosen:
        raise click.UsageError("name rollouts by id, or a group with ended rollouts by --group")
    texts, parts, found = dict[int, str](), dict[int, bytes](), []
    for id in dict.fromkeys(chosen):
        _, trajectory = await client.rollout(id, namespace)
        if trajectory is None:
            raise BadRequest(f"rollout {id} has not ended yet; export it when it has")
        found.append(trajectory)
        try:
            some, others = await client.token_texts(id, namespace)
        except (NotFound, Unavailable) as error:
            say(f"tokens of {id} are shown by their ids: {error}")
        else:
            texts |= some
            parts |= others
    with written_file(None if output == "-" else Path(output)) as opened:
        opened.write(html_page(found, ShownTokens(texts, parts)))


@export.command("evaluations")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "jsonl"]),
    help="form of the file  [default: that of its name, .parquet or .jsonl]",
)
@click.option("-o", "--output", required=True, help="new file; - for standard output")
@with_client
async def evaluations(
    client: AsyncClient, namespace: str, names: tuple[str, ...], form: str | None, output: str
) -> None:
    """Write the results of evaluations, one row for each task, with the rewards of its rollouts."""
    rows: list[dict[str, Any]] = []
    for name in names:
        for task in await client.evaluated_tasks(name, namespace):
            rows.append({"evaluation": name, **task.model_dump(mode="json")})
    form = _form_of(form, output)
    if form == "parquet":
        from rollyard.trajectory.parquet import load_pyarrow

        pa = load_pyarrow()
        with _new_file(output) as part:
            pa.parquet.write_table(pa.Table.from_pylist([*map(_flat, rows)], _schema(pa)), part, compression="zstd")
    else:
        with written_file(None if output == "-" else Path(output)) as opened:
            opened.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    say(f"{len(rows)} tasks written")


def _schema(pa: Any) -> Any:
    text, texts = pa.string(), pa.list_(pa.string())
    plain = [("evaluation", text), ("task", text), ("kind", text), ("metadata", text)]
    counted = [("rewards", pa.list_(pa.float64())), ("faults", text), ("other_version", pa.int64())]
    return pa.schema([*plain, *counted, ("rollouts", texts), ("repeated", texts)])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with objects as JSON texts, because their fields differ from row to row."""
    return {k: json.dumps(v, ensure_ascii=False) if isinstance(v, dict) else v for k, v in row.items()}


async def _write(
    found: AsyncGenerator[Columns], form: str | None, output: str, limit: int | None = None, told: str = ""
) -> int:
    """Write the rollouts, tell their number (with `told`), and return it. The generators end before the event loop does, also
    if a reader closes its end of a pipe."""
    form, count = _form_of(form, output), 0
    async with contextlib.aclosing(found):
        with _opened(form, output) as target:
            async for columns in found:
                if limit is not None and count + len(columns) > limit:
                    columns = columns.part(0, limit - count)
                await asyncio.to_thread(target.write, columns)  # the next ones come in meanwhile
                before, count = count, count + len(columns)
                if before // EVERY < count // EVERY and sys.stderr.isatty():
                    say(f"{count} rollouts so far")
                if limit is not None and count >= limit:
                    break
    say(f"{count} rollouts written{told}")
    return count


def _form_of(form: str | None, output: str) -> str:
    found = form or FORMS.get(Path(output).suffix)
    if found is None:
        raise click.UsageError(f"choose --format for {output}, or a name that ends in {' or '.join(FORMS)}")
    if output == "-" and found != "jsonl":
        raise click.UsageError("standard output takes JSON lines only: --format jsonl")
    return found


@contextlib.contextmanager
def _opened(form: str, output: str) -> Iterator[Target]:
    if form == "parquet":
        from rollyard.trajectory.parquet import ParquetFile

        with _new_file(output) as part, ParquetFile(part) as file:
            yield file
    elif form == "atif":
        yield AtifFolder(Path(output))
    else:
        with written_file(None if output == "-" else Path(output)) as opened:
            yield JsonLines(opened.write)


@contextlib.contextmanager
def _new_file(output: str) -> Iterator[Path]:
    """Return a name beside the output. The file appears under its own name when it is complete."""
    path = Path(output)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise BadRequest(f"{error.filename or output}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


class JsonLines:
    """One trajectory a line, as `rollyard submit -o jsonl` prints it."""

    def __init__(self, write: Any) -> None:
        self._write = write

    def write(self, columns: Columns) -> None:
        for document in columns.documents():
            self._write(json.dumps(document, ensure_ascii=False) + "\n")


class AtifFolder:
    """A folder with one ATIF document for each rollout."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequest(f"{error.filename or folder}: {error.strerror}") from None
        self._folder = folder

    def write(self, columns: Columns) -> None:
        from rollyard.trajectory.atif import atif
        from rollyard.trajectory.trajectory import Trajectory

        trajectories: Sequence[Trajectory] = columns.read(Trajectory, extra="ignore")
        for trajectory in trajectories:
            with written_file(self._folder / f"{quote(trajectory.id, safe='')}.json") as opened:
                json.dump(atif(trajectory, __version__), opened, ensure_ascii=False)

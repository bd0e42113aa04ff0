"""Two training steps in each logger, as its own reader reads them back: `python step_loggers.py FOLDER STEPS`.

It runs in the loggers' environment, offline. STEPS is JSON: [step, values] for each step. What each logger has stored is
printed as JSON after the word RESULTS.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollyard.client.step_log import ExperimentLog, StepLog, TensorBoardLog

Stored = dict[str, dict[str, float]]
"""Step -> name -> value."""


def tensorboard(folder: Path) -> tuple[StepLog, Any]:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))

    def read() -> Stored:
        from tensorboardX.proto.event_pb2 import Event

        writer.close()
        found: Stored = {}
        for record in records(next(folder.glob("events.*")).read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(str(event.step), {})[value.tag] = value.simple_value
        return found

    return TensorBoardLog(writer), read


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length, checksum, data, checksum."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += length + 16


def short_log(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's form that is shorter than a block: checksum, length, type, data."""
    at = 0
    while at + 7 <= len(data):
        (length,) = struct.unpack_from("<H", data, at + 4)
        yield data[at + 7 : at + 7 + length]
        at += length + 7


def wandb(folder: Path) -> tuple[StepLog, Any]:
    import wandb

    run = wandb.init(project="p", mode="offline", dir=str(folder))
    path = Path(run.dir).parent

    def read() -> Stored:
        run.finish()
        wandb.teardown()  # only then the file is whole
        from wandb.proto import wandb_internal_pb2

        found: Stored = {}
        for data in short_log(next(path.glob("*.wandb")).read_bytes()[7:]):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                step = items.get("_step", record.history.step.num)
                found[str(step)] = {k: v for k, v in items.items() if not k.startswith("_")}
        return found

    return ExperimentLog(run), read


def trackio(folder: Path) -> tuple[StepLog, Any]:
    import trackio

    trackio.init(project="p", name="r", embed=False)

    def read() -> Stored:
        trackio.finish()
        (path,) = folder.glob("p*.db")
        with sqlite3.connect(path) as db:
            return {str(step): json.loads(text) for step, text in db.execute("SELECT step, metrics FROM metrics")}

    return ExperimentLog(trackio), read


def main() -> None:
    folder, steps = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ |= {"HOME": str(folder), "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}
    results = {}
    for make in (tensorboard, wandb, trackio):
        place = folder / make.__name__
        place.mkdir()
        log, read = make(place)
        for step, values in steps:
            log.log(step, values)
        results[make.__name__] = read()
    print("RESULTS", json.dumps(results))


if __name__ == "__main__":
    main()

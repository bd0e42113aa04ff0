"""`python -m tests.wire.record` writes a new file for each message that has fields which its last one lacks.

Files of a release are never changed. Before the first release they are written anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rollyard.trajectory.columns import VERSION, encode
from tests.support.recorded import lost_fields
from tests.wire.samples import OUTCOME, SAMPLES

FOLDER = Path(__file__).with_name("recorded")
COLUMNS = FOLDER / f"columns.{VERSION}.safetensors"
"""The result of a node agent as columns of today's version."""


def recorded(name: str) -> list[tuple[Path, Any]]:
    """Files of one message with what they hold, the oldest first."""
    found = sorted(FOLDER.glob(f"{name}.*.json"), key=lambda path: int(path.suffixes[0][1:]))
    return [(path, json.loads(path.read_text())) for path in found]


def unrecorded(sample: BaseModel) -> list[str]:
    """Fields of the sample that the newest file of its message lacks."""
    files = recorded(type(sample).__name__)
    return lost_fields(dump(sample), files[-1][1]) if files else ["everything"]


def dump(sample: BaseModel) -> Any:
    return json.loads(sample.model_dump_json())


def main() -> None:
    for sample in SAMPLES:
        if unrecorded(sample):
            name = type(sample).__name__
            path = FOLDER / f"{name}.{len(recorded(name)) + 1}.json"
            path.write_text(json.dumps(dump(sample), indent=1) + "\n")
            print(path.name)
    if not COLUMNS.exists():
        COLUMNS.write_bytes(encode([OUTCOME], {"artifact": {"answer": "2"}}))
        print(COLUMNS.name)


if __name__ == "__main__":
    main()

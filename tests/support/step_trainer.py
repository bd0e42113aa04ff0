"""A trainer in a process of its own, which a test kills: it takes batch after batch until its epochs are over.

`python -m tests.support.step_trainer KUBECONFIG FOLDER REQUEST` adds a line to `seen` of its folder for each group that it
gets, and a file `step-N` with the groups of each step that it has finished. It goes on after the last finished step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rollyard.client import Client
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import BatchRequest, BatchStatus


def train(client: Client, folder: Path, request: BatchRequest) -> None:
    ended = False
    while not ended:
        number = len(list(folder.glob("step-*")))
        batch = client.batch(evolve(request, id=f"{request.id}-{number}"))
        groups = []
        for group in batch:
            found = [batch.id, group.delivery, group.id, group.rollouts[0].task.fields["answer"], len(group.rollouts)]
            groups.append(found)
            with (folder / "seen").open("a") as seen:
                seen.write(json.dumps(found) + "\n")
        assert batch.view is not None
        ended = batch.view.status is BatchStatus.EXHAUSTED
        (folder / "new").write_text(json.dumps([groups, ended]))
        os.rename(folder / "new", folder / f"step-{number}")


if __name__ == "__main__":
    kubeconfig, folder, request = sys.argv[1:]
    with Client(kubeconfig=kubeconfig) as client:
        train(client, Path(folder), BatchRequest.model_validate_json(request))

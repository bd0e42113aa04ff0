"""Task kinds of somebody else's, installed for real: the one in the documentation, word for word, and a broken one."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import RolloutRequest, Status, Trajectory
from tests.support.yard import ROOT, Yard, end

PLUGINS = {
    "entry_points.txt": "[rollyard.tasks]\nhaiku = my_package:HaikuHandler\nbroken = my_broken_package:Handler\n",
    "METADATA": "Metadata-Version: 2.1\nName: plugged-in\nVersion: 1\n",
}


@pytest.fixture
async def plugged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    folder = made.folder / "plugin"
    info = folder / "plugged_in-1.dist-info"
    info.mkdir(parents=True)
    for name, text in PLUGINS.items():
        (info / name).write_text(text)
    documented = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "task-handlers.md").read_text(), re.DOTALL)
    assert documented is not None
    (folder / "my_package.py").write_text(documented[1])
    (folder / "my_broken_package.py").write_text("import nonesuch_package\n")
    made.env["PYTHONPATH"] = ":".join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    made.start()
    yield made
    await end(made)


async def test_the_documented_plug_in_works_and_what_goes_wrong_is_told_at_once(plugged: Yard) -> None:
    async with plugged.client() as client:
        await plugged.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await plugged.ready(client)

        async def ended(id: str, task: dict[str, Any], **more: Any) -> Trajectory:
            request = RolloutRequest.model_validate({"id": id, "pool": "demo", "task": task, **more})
            (trajectory,) = await plugged.gather(client, await client.submit([request]))
            return trajectory

        haiku = await ended("haiku", {"kind": "haiku", "topic": "rain"}, sampling={"max_tokens": 64})
        assert haiku.status.scored
        assert haiku.reward in (0.0, 1.0)
        assert "lines" in haiku.metrics
        assert sum(haiku.segments[0].loss_mask) > 0

        lacking = await ended("lacking", {"kind": "haiku"})
        source = (plugged.folder / "plugin" / "my_package.py").read_text().splitlines()
        line = next(n for n, text in enumerate(source, start=1) if "fields['topic']" in text)
        assert (lacking.status, lacking.reward, lacking.attempt) == (Status.FAILED, None, 1)
        assert lacking.error is not None
        assert lacking.error.reason == "HandlerFailed"
        where = f"{plugged.folder}/plugin/my_package.py:{line}"
        assert lacking.error.message == f"prompt() of task kind 'haiku' raised KeyError: 'topic' ({where})"

        with pytest.raises(
            Invalid,
            match=r"cannot load the handler of task kind 'broken': ModuleNotFoundError: No module named 'nonesuch_",
        ):
            await ended("broken", {"kind": "broken"})

        long = await ended("long", {"kind": "haiku", "topic": "rain"}, budgets={"context_tokens": 9})
        assert (long.status, long.reward, long.segments) == (Status.FAILED, None, [])
        assert long.error is not None
        assert long.error.reason == "ContextExceeded"
        assert re.search(
            r"the prompt has \d+ tokens and leaves no room for an answer: .* the context 9", long.error.message
        )

        mute = await ended(
            "mute", {"kind": "haiku", "topic": "rain"}, agent={"type": "command", "command": "echo no call"}
        )
        assert (mute.status, mute.reward, mute.attempt) == (Status.FAILED, None, 1)
        assert mute.error is not None
        assert "exit code 0 before its first model call: no call" in mute.error.message

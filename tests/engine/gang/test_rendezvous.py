"""The ranks of a gang find rank 0 also through a shared folder that fails at times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollyard.core.errors import Unavailable
from rollyard.engine.gang import rendezvous
from rollyard.engine.gang.rendezvous import Gang


async def test_an_error_of_the_shared_folder_does_not_end_the_wait_for_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)
    folder, meeting = tmp_path / "folder", tmp_path / "folder" / "gang.json"
    folder.touch()  # reading below a file raises NotADirectoryError
    other = Gang(1, 2, meeting)
    joining = asyncio.create_task(other.join())
    await asyncio.wait({joining}, timeout=0.1)
    folder.unlink()
    folder.mkdir()
    meeting.write_text("{")
    await asyncio.wait({joining}, timeout=0.1)
    meeting.unlink()
    rank_0 = Gang(0, 2, meeting).lead("127.0.0.1", "/model")
    joined = await asyncio.wait_for(joining, 60)
    assert (joined.rank, joined.address, joined.port, joined.model) == (1, "127.0.0.1", rank_0.port, "/model")


async def test_a_folder_that_stays_unreadable_is_named_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous, "JOIN_SECONDS", 0.5)
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"within 0\.5 s; .*gang\.json cannot be read: .*Not a directory"):
        await Gang(1, 2, tmp_path / "file" / "gang.json").join()

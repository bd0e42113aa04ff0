"""`~/.rollyard/config` when a server starts: nothing that it named before is lost without a word."""

from __future__ import annotations

from pathlib import Path

from rollyard.server_process.kubeconfig_link import link_newest


def test_a_second_server_takes_the_commands_and_says_how_to_reach_the_first(tmp_path: Path) -> None:
    link, first, second = tmp_path / "home" / ".rollyard" / "config", tmp_path / "first", tmp_path / "second"
    link.parent.parent.mkdir()
    for server in (first, second):
        server.touch()
    assert link_newest(first, link) is None, "there was none before"
    assert link_newest(first, link) is None, "a restart of the same server"
    said = link_newest(second, link)
    assert said is not None
    assert f"export ROLLYARD_KUBECONFIG={first}" in said
    assert link.readlink() == second

    second.unlink()
    assert link_newest(first, link) is None, "a server whose data folder is deleted is not missed"


def test_a_file_of_the_user_stays(tmp_path: Path) -> None:
    link, own = tmp_path / "config", tmp_path / "own"
    own.touch()
    link.write_text("mine")
    said = link_newest(own, link)
    assert said is not None
    assert f"export ROLLYARD_KUBECONFIG={own}" in said
    assert link.read_text() == "mine"

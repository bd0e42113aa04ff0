"""`rollyard explain`."""

from __future__ import annotations

from click.testing import CliRunner

from rollyard.cli.main import cli


def explained(path: str) -> str:
    done = CliRunner().invoke(cli, ["explain", path])
    assert done.exit_code == 0
    return done.output


def test_a_list_of_fields_has_their_whole_descriptions() -> None:
    text = explained("rolloutpool.spec.sandbox.images")
    whole = " ".join(explained("rolloutpool.spec.sandbox.images.cacheSize").partition("DESCRIPTION:")[2].split())
    assert len(whole) > 100
    assert whole in " ".join(text.split())


def test_what_has_no_description_has_no_heading_for_it() -> None:
    assert "DESCRIPTION" not in explained("rolloutpool.spec")
    assert "DESCRIPTION:\n  Pool of node agents" in explained("rolloutpool")

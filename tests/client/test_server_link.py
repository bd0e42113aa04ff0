"""The files of an allocation on a shared file system that lags."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from rollyard.client.server_link import ServerLink
from rollyard.core import lagging_files
from rollyard.trust.ca import Authority
from rollyard.trust.endpoint_file import read_endpoint
from rollyard.wire.files import AllocationFile


@pytest.fixture
def job(tmp_path: Path) -> Path:
    authority, folder = Authority.open(tmp_path / "trust"), tmp_path / "job"
    folder.mkdir()
    (folder / "ca.pem").write_text(authority.ca_pem)
    fields = {
        "allocation": "policy-0",
        "namespace": "default",
        "uid": "u",
        "pool": "policy",
    }
    given = {
        **fields,
        "ca_file": str(folder / "ca.pem"),
        "endpoint_file": str(folder / "endpoint.json"),
        "scratch": "/tmp",
    }
    (folder / "allocation.json").write_text(AllocationFile.model_validate(given).model_dump_json())
    (folder / "token").write_text("secret\n")
    return folder


@pytest.mark.parametrize(
    ("late", "first"),
    [
        *((name, first) for name in ("allocation.json", "token", "ca.pem") for first in (None, b"")),
        ("allocation.json", b'{"alloc'),
        ("ca.pem", b"-----BEGIN CERT"),
    ],
)
def test_a_file_that_appears_late_or_half_written_is_waited_for(job: Path, late: str, first: bytes | None) -> None:
    whole = job / late
    shutil.move(whole, job / "kept")
    if first is not None:
        whole.write_bytes(first)
    later = threading.Timer(0.2, lambda: shutil.move(job / "kept", whole))
    later.start()
    try:
        assert ServerLink.open(job).token == "secret"
    finally:
        later.join()


def test_a_file_of_an_earlier_allocation_of_this_name_is_not_used(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed file stays for a while. The batch script, which Slurm delivers, has the uid."""
    monkeypatch.setenv("ROLLYARD_ALLOCATION_UID", "u2")
    file = job / "allocation.json"
    new = file.read_text().replace('"uid":"u"', '"uid":"u2"')
    later = threading.Timer(0.2, lambda: file.write_text(new))
    later.start()
    assert ServerLink.open(job).allocation.uid == "u2"
    later.join()


def test_files_that_never_come_are_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging_files, "LAG_SECONDS", 0.0)
    (job / "token").unlink()
    with pytest.raises(FileNotFoundError, match="token"):
        ServerLink.open(job)


@pytest.mark.parametrize("text", [b"", b'{"url": "https', b"[]", b"\0" * 40])
def test_a_half_written_address_is_no_address(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "endpoint.json").write_bytes(text)
    assert read_endpoint(tmp_path / "endpoint.json") is None

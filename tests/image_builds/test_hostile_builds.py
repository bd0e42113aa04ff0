"""Dockerfiles that try to reach files of this machine."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.core.errors import ImageBuildFailed, SandboxStartFailed
from rollyard.image_builds.copied_files import CopySource, write_copy
from tests.image_builds.conftest import Builder


@pytest.fixture
def victim(open_folder: Path) -> Path:
    """A folder of this machine that everybody may write."""
    folder = open_folder / "victim"
    folder.mkdir()
    folder.chmod(0o777)
    for name in ("hosts", "resolv.conf"):
        (folder / name).write_text("host")
        (folder / name).chmod(0o666)
    (folder / "rollyard").mkdir()
    return folder


def _content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() if path.is_file() else "folder" for path in folder.iterdir()}


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE])
def test_an_archive_with_a_giant_header_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    giant = tarfile.TarInfo("giant")
    giant.type, giant.size = kind, 2 << 20
    first = tarfile.TarInfo("first")
    (tmp_path / "bomb.tar").write_bytes(first.tobuf() + giant.tobuf() + bytes(3 << 20))
    source = CopySource("bomb.tar", False, (("", str(tmp_path / "bomb.tar")),))
    with pytest.raises(OSError, match=r"cannot be unpacked safely \(it has a .*\): COPY the folder"):
        write_copy(tmp_path / "out.tar", [source], "app", True, mode=None, unpack=True)


async def test_a_command_that_replaces_folders_by_links_changes_no_file_of_this_machine(
    builder: Builder, runtime: str, victim: Path
) -> None:
    before = _content(victim)
    (builder.folder / "base/etc/hosts").write_text("of the image")
    root = await builder.root(
        f"FROM ../base\nRUN mv /etc /etc.old && ln -s {victim} /etc\n"
        f"RUN mv /opt /opt.old; ln -s {victim} /opt\n"
        f"RUN ln -s {victim}/config /.rollyard-image.json\n",
        runtime=runtime,
    )
    assert _content(victim) == before
    assert (root / "etc").is_symlink()
    assert (root / "etc.old/hosts").read_text() == "of the image", "the folder has its own files again"
    assert not (root / "etc.old/resolv.conf").exists()
    assert not (root / "opt.old/rollyard").exists()
    config = root / ".rollyard-image.json"
    assert config.is_file()
    assert not config.is_symlink()


async def test_a_command_that_replaces_the_host_names_leaves_those_of_the_image(builder: Builder, victim: Path) -> None:
    before = _content(victim)
    (builder.folder / "base/etc/hosts").write_text("of the image")
    root = await builder.root(
        f"FROM ../base\nRUN rm /etc/hosts && ln -s {victim}/hosts /etc/hosts; rm /etc/resolv.conf; "
        "mkdir -p /etc/resolv.conf/a/b && chmod 0 /etc/resolv.conf/a /etc/resolv.conf /etc\n"
    )
    assert _content(victim) == before
    assert (root / "etc/hosts").read_text() == "of the image"
    assert not (root / "etc/resolv.conf").exists()


async def test_no_mount_follows_a_link_of_the_image(builder: Builder, victim: Path) -> None:
    (builder.folder / "base/dev").rmdir()
    (builder.folder / "base/dev").symlink_to(f"/oldroot{victim}/new")
    with pytest.raises(SandboxStartFailed, match="/dev of the image is a symbolic link"):
        await builder.build("FROM ../base\nRUN true\n")
    assert not (victim / "new").exists()


async def test_no_name_of_the_image_mounts_a_folder_of_the_machine(builder: Builder, victim: Path) -> None:
    """Apptainer reads several mounts from one word."""
    way = f"/x,{victim}:/seen"

    async def refused(dockerfile: str) -> None:
        with pytest.raises(SandboxStartFailed, match=r"nothing can be mounted at 'x,.*choose a path without"):
            await builder.build(dockerfile)

    await refused(f"FROM ../base\nRUN ln -s '{way}' /way\nRUN --mount=type=cache,target=/way cat /seen/hosts\n")
    await refused(f"FROM ../base\nWORKDIR {way}\nRUN --mount=type=cache,target=y cat /seen/hosts\n")
    (builder.folder / "base/opt").symlink_to(way)
    await refused("FROM ../base\nRUN cat /seen/hosts\n")


async def test_a_dockerfile_reads_no_folder_that_is_not_allowed(builder: Builder, victim: Path) -> None:
    (builder.context / "way").symlink_to(victim)
    for name in (str(victim), "../victim", "./way"):
        with pytest.raises(ImageBuildFailed, match=f"Dockerfile:1: .*--allow-folder {victim}$"):
            await builder.build(f"FROM {name}\n")
        with pytest.raises(ImageBuildFailed, match=f"Dockerfile:2: .*--allow-folder {victim}$"):
            await builder.build(f"FROM scratch\nCOPY --from={name} /hosts /stolen\n")
    builder.write({"own/file": "text"})
    dockerfile = f"FROM ./own\nCOPY --from={victim} /hosts /copied\n"
    root = await builder.root(dockerfile, folders=[victim])
    assert ((root / "copied").read_text(), (root / "file").read_text()) == ("host", "text")


async def test_a_command_that_nests_folders_without_end_fails_and_leaves_nothing(
    builder: Builder, left_over: Callable[[], list[str]]
) -> None:
    deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d && i=$((i+1)) || exit 1; done"
    with pytest.raises(ImageBuildFailed, match="nested more than 200 deep, which no image may have"):
        await builder.build(f"FROM ../base\nRUN {deep}\n")
    assert left_over() == []
    await builder.build(f"FROM ../base\nRUN {deep}; cd /; rm -r d\n")


async def test_a_small_archive_with_a_huge_content_is_refused(builder: Builder) -> None:
    member = tarfile.TarInfo("zeros")
    member.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "zeros", "GNU.sparse.map": f"{1 << 40},0"}
    with tarfile.open(builder.context / "bomb.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(ImageBuildFailed, match=r"Dockerfile:2: .*its content is more than 16 GiB"):
        await builder.build("FROM scratch\nADD bomb.tar.gz /\n")


async def test_an_archive_that_is_unpacked_over_links_changes_no_file_of_this_machine(
    builder: Builder, victim: Path
) -> None:
    before = _content(victim)
    member = tarfile.TarInfo("way/hosts")
    with tarfile.open(builder.context / "files.tar", "w") as archive:
        archive.addfile(member)
    await builder.build(f"FROM ../base\nRUN ln -s {victim} /way\nADD files.tar /\n")
    assert _content(victim) == before

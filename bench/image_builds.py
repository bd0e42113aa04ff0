"""Builds on one base: the time of each further build, and what its images take on disk.

    python -m bench.image_builds [--bytes 720000000] [--rounds 5] [--old CHECKOUT] [--folder /tmp]

The base is busybox with files of this machine's /usr, under a name (`built:base`). Each further image adds one small file by a
RUN. Each build is a process of its own. With --old, the code of another checkout does the same in turn, with a cache of its
own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.images import Times, files_of_usr, folders, show_ratio
from rollyard.host.node_cache import node_cache
from rollyard.sandbox.bundled_python import own_python
from tests.support.small_roots import busybox_root

IMAGES = 6


class Builds:
    """The builds of one checkout, with their cache."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self._checkout = checkout
        self._context = folder / "context"
        self._context.mkdir()
        self.cache = folder / "cache"
        self.cache.mkdir(mode=0o755)
        own = own_python(node_cache())
        (self.cache / own.name).symlink_to(own)
        self.first = Times(f"{folder.name}: the first build on the base")
        self.further = Times(f"{folder.name}: each further one")

    def build(self, dockerfile: str, tag: str, *words: str) -> float:
        (self._context / "Dockerfile").write_text(dockerfile)
        command = [
            sys.executable,
            "-m",
            "rollyard.cli.main",
            "images",
            "build",
            str(self._context),
            "--tag",
            tag,
            *words,
        ]
        env = {**os.environ, "ROLLYARD_CACHE": str(self.cache), "PYTHONPATH": str(self._checkout)}
        started = time.perf_counter()
        done = subprocess.run(command, env=env, cwd=self._checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return time.perf_counter() - started


def bytes_of(*paths: Path) -> int:
    """Return the bytes on disk of folders. A file with several names counts once."""
    there = [str(path) for path in paths if path.exists()]
    listed = subprocess.run(["du", "-scB1", *there], check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(listed.splitlines()[-1].split()[0])


def main(folder: Path, most: int, rounds: int, old: Path | None) -> None:
    base = busybox_root(folder / "base")
    files, total = files_of_usr(most)
    (folder / "list").write_text("\0".join(files))
    subprocess.run(f"tar -cC / --null -T {folder}/list | tar -xC {base}", shell=True, check=True)
    print(f"base: {len(files)} files, {total / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    every = []
    for name, checkout in (("new", Path.cwd()), ("old", old)):
        if checkout is not None:
            (folder / name).mkdir(mode=0o755)
            every.append(Builds(folder / name, checkout.resolve()))
    for one in every:
        one.build(f"FROM {base}\n", "base", "--allow-folder", str(base))
        one.first.seconds.append(one.build("FROM built:base\nRUN echo first > /number\n", "numbers:first"))
    for number in range(max(rounds, IMAGES - 1)):
        for one in every:
            dockerfile = f"FROM built:base\nRUN echo {number} > /number\n"
            one.further.seconds.append(one.build(dockerfile, f"numbers:v{number}"))
    for one in every:
        one.first.show()
        one.further.show()
    if len(every) > 1:
        show_ratio(every[0].further, every[1].further, "further builds, new beside old")
    images = 2 + max(rounds, IMAGES - 1)
    for one in every:
        stored = bytes_of(one.cache / "image-cache/built")
        print(f"  {images} images with names, {one.further.name.split(':')[0]:<39}{stored / 1e6:>8.0f} MB")
    archive = folder / "one.tar"
    every[0].build("FROM built:base\nRUN echo 0 > /number\n", "numbers:v0", "--output", f"oci-archive:{archive}")
    print(f"  {f'{images} whole copies':<56}{images * archive.stat().st_size / 1e6:>8.0f} MB")
    together = bytes_of(every[0].cache / "image-cache", every[0].cache / "image-builds/layers")
    print(f"  {'new: with the build cache and all unpacked layers':<56}{together / 1e6:>8.0f} MB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=720_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--old", type=Path, help="checkout of another version, beside which this one is measured")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder on a local disk")
    asked = parser.parse_args()
    for made in folders(asked.folder):
        main(made, asked.bytes, asked.rounds, asked.old)

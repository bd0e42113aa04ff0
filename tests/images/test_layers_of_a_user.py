"""Layered images of an ordinary user: on a disk, in a container, and in a container of a container.

The root of a container is an overlay. A cache there can hold no whiteout, and fuse-overlayfs mounts the root of a build's
step; in a container of a container that of sandboxes too.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rollyard.host.node_cache import node_cache
from tests.support.debian_packages import debian_program
from tests.support.open_python import ROOT
from tests.support.ordinary_user import ordinary_user

OVERLAYS = {"disk": 0, "container": 1, "container in a container": 2}
FUSE = "/usr/local/sbin/fuse-overlayfs"
CHOSEN = {"disk": [None, None], "container": [None, FUSE], "container in a container": [FUSE, FUSE]}
"""Place -> what mounts the roots of sandboxes and of steps; None: the kernel."""
SANDBOXES = "tests/images/test_layered_sandboxes.py"
TESTS = (
    f"{SANDBOXES}::test_a_sandbox_shows_the_files_of_a_plain_unpack",
    f"{SANDBOXES}::test_a_layer_that_a_sandbox_shows_outlives_every_eviction",
    f"{SANDBOXES}::test_waves_of_sandboxes_leave_no_mount",
    "tests/image_builds/test_step_changes.py::test_a_step_has_exactly_its_changes",
)
SET_UP = """
set -e
folder=$1 overlays=$2 fuse=$3 uid=$4 gid=$5; shift 5
mount -t tmpfs -o mode=755 programs /usr/local/sbin
ln -s "$fuse" /usr/local/sbin/fuse-overlayfs
mknod -m 666 "$folder/fuse" c 10 229
mount --bind "$folder/fuse" /dev/fuse
place=$folder/0
mkdir "$place"
for number in $(seq "$overlays"); do
    mkdir "$folder/$number" "$folder/changed$number" "$folder/work$number"
    mount -t overlay -o "lowerdir=$place,upperdir=$folder/changed$number,workdir=$folder/work$number" root "$folder/$number"
    place=$folder/$number
done
chown "$uid:$gid" "$place"
export TMPDIR=$place ROLLYARD_CACHE=$place/node
exec setpriv --reuid="$uid" --regid="$gid" --clear-groups sh -c '
    cp -a "$1" "$ROLLYARD_CACHE" && shift && exec "$@"
' sh "$@"
"""
PROBE = """
import json, os, sys, pytest
from rollyard.host.node_cache import node_cache
from rollyard.image_builds.step_root import find_overlay
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT
from rollyard.sandbox.root_mount import find_root_mount

folder = node_cache() / "probe"
folder.mkdir(mode=0o755)
print(json.dumps([find_root_mount(node_cache(), LAUNCH_ENVIRONMENT).fuse, find_overlay(folder)]), flush=True)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("place", "chosen"),
    [
        pytest.param("container", "bubblewrap and not 130 and not 20-50", id="short"),
        *(pytest.param(place, "not 20-50", marks=pytest.mark.long, id=place) for place in OVERLAYS),
    ],
)
def test_layered_images_of_an_ordinary_user(open_folder: Path, place: str, chosen: str) -> None:
    user, fuse = ordinary_user(), debian_program("fuse-overlayfs", "usr/bin/fuse-overlayfs")
    debian_program("busybox-static", "bin/busybox")
    made = open_folder / "made"  # once for all tests
    (made / "debian").mkdir(parents=True)
    (made / user.own_python.name).symlink_to(user.own_python)
    for name in ("apptainer", "debian/busybox-static"):
        (made / name).symlink_to(node_cache() / name)
    around = ["unshare", "--mount", "sh", "-c", SET_UP, "sh", open_folder, str(OVERLAYS[place]), fuse]
    owner = [str(user.account.uid), str(user.account.gid), made]
    tests = [user.python, "-c", PROBE, "-q", "-p", "no:cacheprovider", "-k", chosen, *TESTS]
    done = subprocess.run(
        [*around, *owner, *tests], cwd=ROOT, env={**os.environ, **user.environment}, capture_output=True, text=True,
        check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == CHOSEN[place]

"""Commands of everyday work with software, the tree in which they are run, and what a root chroot of the tree answers.

    python -m tests.support.everyday_commands RUNTIME TREE CACHE

prints what a sandbox of the tree answers, as JSON. So the sandbox can be another account's.
"""

# ruff: noqa: E501 - a command is one line

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory

Answer = tuple[int, str]
"""Exit code and output of a command."""
SECONDS = 120.0
PACKAGES = ("git", "make", "patch", "python3-pip", "python3-setuptools", "python3-venv", "python3-wheel")
ENVIRONMENT = {
    "HOME": "/root", "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8", "PAGER": "cat", "TERM": "dumb",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive",
}  # fmt: skip
SET_UP = r"""
set -e
mkdir -p /repo/src/pkg /repo/build/lib/deep /repo/docs/old /srv/app /srv/deb/DEBIAN /srv/deb/usr/bin /srv/debs /srv/wheels
cd /repo
printf 'all:\n\tmkdir -p out && echo made > out/made\nclean:\n\trm -rf out build\n' > Makefile
printf 'from setuptools import setup\nsetup(name="everyday", version="1.0", packages=["pkg"], package_dir={"": "src"})\n' > setup.py
echo 'def answer(): return 42' > src/pkg/__init__.py
echo one > docs/old/one.md; echo two > docs/two.md; echo read > README.md; echo x > build/lib/deep/x; echo y > build/y
printf 'build/\nout/\n*.egg-info/\n__pycache__/\n' > .gitignore
git config --global user.name Tester; git config --global user.email tester@example.org; git config --global init.defaultBranch main
git init -q; git add -A; git commit -qm first
echo more >> README.md; git commit -qam second; git branch feature HEAD~1
printf -- '--- a/README.md\n+++ b/README.md\n@@ -1,2 +1,2 @@\n-read\n+READ\n more\n' > /srv/change.patch
for version in 1.0 2.0; do
    sed -i "s/version=\"[0-9.]*\"/version=\"$version\"/" setup.py
    pip wheel -q --no-deps --no-build-isolation --no-index -w /srv/wheels . 2> /dev/null
    rm -rf build/bdist* src/*.egg-info
done
git checkout -q setup.py
git clean -fdxq -e build
pip install -q --no-index --break-system-packages --root-user-action=ignore /srv/wheels/everyday-1.0-*.whl
printf 'Package: greeter\nVersion: 1.0\nArchitecture: all\nMaintainer: Tester <tester@example.org>\nDescription: greets\n' \
    > /srv/deb/DEBIAN/control
printf '#!/bin/sh\nset -e\nif [ "$1" = configure ]; then\n getent passwd greeter > /dev/null || useradd -r -m -d /var/lib/greeter greeter\n install -d -o greeter -g greeter -m 750 /var/lib/greeter/state\n chown -R greeter:greeter /var/lib/greeter\nfi\n' \
    > /srv/deb/DEBIAN/postinst
chmod 755 /srv/deb/DEBIAN/postinst
printf '#!/bin/sh\necho hello\n' > /srv/deb/usr/bin/greet; chmod 755 /srv/deb/usr/bin/greet
mkdir -p /srv/deb/etc/sudoers.d; echo '# closed' > /srv/deb/etc/sudoers.d/greeter; chmod 440 /srv/deb/etc/sudoers.d/greeter
dpkg-deb -b --root-owner-group /srv/deb /srv/debs/greeter_1.0_all.deb > /dev/null
{ dpkg-deb -f /srv/debs/greeter_1.0_all.deb; echo "Filename: ./greeter_1.0_all.deb"
  echo "Size: $(stat -c %s /srv/debs/greeter_1.0_all.deb)"
  echo "SHA256: $(sha256sum < /srv/debs/greeter_1.0_all.deb | cut -d' ' -f1)"; echo; } > /srv/debs/Packages
rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] file:/srv/debs ./' > /etc/apt/sources.list
mkdir -p /home/dev /root/.cache; for place in /root/.m /home/dev/m /mnt/m /run/m /srv/app/m /tmp/m /var/tmp/m; do echo mark > $place; done
chmod 600 /srv/app/m; chown 1234:1234 /srv/app/m /srv/app
mkdir -p /var/empty-one/sub; mkdir -m 0500 /srv/closed; echo in > /srv/closed/in
touch /srv/before
"""
"""Script that makes the tree ready, in a chroot."""
COMMANDS = """
cat /root/.m /home/dev/m /mnt/m /run/m /srv/app/m /tmp/m /var/tmp/m
echo new >> /srv/app/m && cat /srv/app/m && rm -r /srv/app && ls -d /srv/app
rm /tmp/m /var/tmp/m /run/m /mnt/m /root/.m; ls -A /tmp /mnt
id -u; id -un; whoami; echo $HOME; cd; pwd
rm -rf /repo/build; ls -A /repo
cd /repo && mv docs documents && find documents | sort
cd /repo && git status --short | sort
cd /repo && mv documents docs && git status --short
cd /repo && mkdir build && echo again > build/y && ls -R build
cd /repo && make -s all && cat out/made
cd /repo && make -s clean; ls
cd /repo && echo stray > stray && mkdir -p a/b && touch a/b/c && git clean -fdxq && ls
cd /repo && git mv README.md READ.md && git commit -qm moved && git log --oneline | wc -l
cd /repo && patch -p1 < /srv/change.patch; git stash -q; git stash pop -q; git status --short
cd /repo && git mv READ.md README.md && patch -p1 < /srv/change.patch && git diff --stat HEAD~1
cd /repo && git reset -q --hard HEAD~1 && cat README.md
cd /repo && git checkout -q feature && echo f > f && git add f && git commit -qm f && git merge -q main -m merged && ls
cd /repo && git checkout -q main && git rebase -q feature && git log --format=%s
cd /repo && git gc -q && git fsck 2> /dev/null && git count-objects -v | grep -c packs:
cd /repo && git worktree add -q /tmp/tree feature && ls /tmp/tree && git worktree remove /tmp/tree && ls /tmp
git clone -q /repo /tmp/clone && rm -rf /tmp/clone/.git && ls -A /tmp/clone
rm -rf /repo/.git && cd /repo && git init -q && git add -A && git commit -qm anew && git log --format=%s
cp -a /repo /repo2 && diff -r /repo/src /repo2/src && rm -rf /repo && mv /repo2 /repo && ls -A /repo
sed -i 's/^root:/root:/' /etc/passwd && head -n 1 /etc/passwd
cp /etc/hosts /etc/h 2> /dev/null; echo 127.0.0.1 localhost > /etc/hosts.new && mv /etc/hosts.new /etc/hosts && cat /etc/hosts
mv /etc/group /etc/group.old && cp /etc/group.old /etc/group && rm /etc/group.old && wc -l < /etc/group
echo name > /etc/hostname && rm /etc/hostname; ls /etc/hostname
echo nameserver 127.0.0.1 > /etc/resolv.conf && cat /etc/resolv.conf
useradd -m worker && getent passwd worker && ls -A /home/worker
groupadd team && usermod -aG team worker && id -nG worker
userdel worker && rm -r /home/worker; getent passwd worker; ls /home
touch /srv/f && chown 33:33 /srv/f && chgrp www-data /srv/f && chmod 640 /srv/f && stat -c %a /srv/f
chown -R www-data:www-data /repo && chown -R root: /repo && echo $?
install -o www-data -g www-data -m 4755 /bin/true /usr/local/bin/t && stat -c %a /usr/local/bin/t
mkdir /srv/t && echo 1 > /srv/t/1 && tar -C /srv --owner=1234 --group=1234 -czf /srv/t.tgz t && rm -r /srv/t && tar -C /srv -xpzf /srv/t.tgz && cat /srv/t/1
chmod 000 /srv/t/1 && cat /srv/t/1 && echo over > /srv/t/1 && rm /srv/t/1
cat /srv/closed/in && touch /srv/closed/new && rm -rf /srv/closed && ls -d /srv/closed
pip list --format=freeze | grep everyday; python3 -c 'import pkg; print(pkg.answer())'
pip install -q --no-index --break-system-packages --root-user-action=ignore --upgrade /srv/wheels/everyday-2.0-*.whl; pip list --format=freeze | grep everyday
pip uninstall -q -y --break-system-packages --root-user-action=ignore everyday; python3 -c 'import pkg' 2>&1 | tail -n 1
python3 -m venv /srv/venv && /srv/venv/bin/pip install -q --no-index /srv/wheels/everyday-1.0-*.whl && /srv/venv/bin/python -c 'import pkg; print(pkg.answer())'
/srv/venv/bin/pip uninstall -q -y everyday pip; ls /srv/venv/lib/python3*/site-packages; rm -rf /srv/venv
cd /repo && python3 -m compileall -q src && ls src/pkg/__pycache__ && rm -rf src/pkg/__pycache__
apt-get -qq update && apt-get -qq install -y greeter > /dev/null 2>&1; greet; getent passwd greeter | cut -d: -f1,6
ls -d /var/lib/greeter/state && cat /etc/sudoers.d/greeter && dpkg -s greeter | grep Status
apt-get -qq purge -y greeter > /dev/null 2>&1; dpkg -s greeter 2>&1 | head -n 1; ls /usr/bin/greet
dpkg -i /srv/debs/greeter_1.0_all.deb > /dev/null 2>&1; greet; dpkg -r greeter > /dev/null 2>&1; echo $?
apt-get -qq install -y --reinstall tzdata 2>&1 | head -n 1; apt-mark showmanual | grep -c git; dpkg --audit
dpkg -P --force-depends patch > /dev/null 2>&1; which patch; dpkg --verify base-files
rm -rf /usr/share/doc && echo file > /usr/share/doc && cat /usr/share/doc && rm /usr/share/doc && mkdir /usr/share/doc && ls -A /usr/share/doc
mv /usr/share/perl5 /usr/share/perl6 && mkdir /usr/share/perl5 && ls -A /usr/share/perl5 && rmdir /usr/share/perl5 && mv /usr/share/perl6 /usr/share/perl5
mv /var/empty-one /var/moved && rmdir /var/moved/sub /var/moved && ls -d /var/empty-one
ln -s /repo /srv/link && ln /repo/setup.py /srv/hard && stat -c %h /srv/hard && mkfifo /srv/fifo && test -p /srv/fifo && readlink -f /srv/link/src
cp -a /usr/bin /srv/bin && diff -rq --no-dereference /usr/bin /srv/bin && rm -rf /srv/bin && ls -d /srv/bin
touch -d 2040-01-01 /srv/late && stat -c %Y /srv/late && truncate -s 60M /srv/sparse && stat -c %s /srv/sparse && rm /srv/sparse && dd if=/dev/zero of=/srv/d bs=1k count=4 2> /dev/null && stat -c %s /srv/d
python3 -c 'import shutil; shutil.rmtree("/usr/share/locale", ignore_errors=True); shutil.move("/usr/share/misc", "/usr/share/m2"); shutil.copytree("/usr/share/m2", "/usr/share/misc")'; ls -d /usr/share/misc /usr/share/m2
python3 -c 'import os; os.rename("/repo/setup.py", "/repo/s.py"); os.replace("/repo/s.py", "/repo/setup.py"); os.makedirs("/x/y/z"); os.removedirs("/x/y/z")'; ls -d /x
echo x > /dev/full; echo y > /dev/null && head -c 2 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c && test -c /dev/tty && echo device
update-alternatives --install /usr/bin/editor editor /bin/true 1 > /dev/null 2>&1; readlink /etc/alternatives/editor
su -c 'echo as $(id -un)' root; runuser -u root -- id -u; chroot --version | head -n 1
mktemp -d /tmp/tmp.XXXXXX > /tmp/name && rmdir $(cat /tmp/name) && rm /tmp/name && ls -A /tmp
find /usr/share -newer /srv/before -type f -name '*.pyc' -delete; find /usr/share/zoneinfo -name 'Etc*' | sort | head -n 3
ldconfig && ldconfig -p | grep -c libc.so; setfacl --version 2>&1 | head -n 1; getent hosts localhost | head -n 1
rm -rf /home/dev /media /opt/nothing; ls /home /media 2>&1; mkdir -p /media
""".strip().splitlines()
"""Commands, each of which a bash of its own runs. Each is given one after the other, so each sees what the others did."""
LISTING = r"""
cd /; paths="repo srv home root etc usr var opt mnt media run tmp"
apart="( -path */.git/* -o -name *.pyc -o -path var/cache/* -o -path var/log/* -o -name *-cache* -o -name *.cache -o -name shadow* -o -name *- -o -name *.tgz -o -path opt/rollyard )"
set -f
{ find $paths -xdev $apart -prune -o -printf '%y %m %p %l\n'
  find $paths -xdev $apart -prune -o -type f -print0 | xargs -0 sha256sum; } | sort > /dev/shm/said 2>&1
"""
"""Script that describes the tree: types, modes, links and contents, and neither owners nor times."""


def wrapped(command: str) -> str:
    """Return a command that runs another one without a terminal."""
    return f"bash -c {shlex.quote(command)} > /dev/shm/said 2>&1 < /dev/null; echo $?; cat /dev/shm/said"


def in_chroot(tree: Path, commands: Sequence[str]) -> tuple[list[Answer], list[str]]:
    """Return the answers of a root chroot of the tree, with this machine's kernel folders, and the listing."""
    mounts = f"mount --rbind /dev {tree}/dev && mount -t tmpfs none {tree}/dev/shm && mount -t proc none {tree}/proc"
    script = f"{mounts} && exec chroot {tree} env -i {shlex.join(f'{k}={v}' for k, v in ENVIRONMENT.items())} bash"
    argv = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    whole = "".join(f"{wrapped(one)}; printf '\\0'\n" for one in commands) + f"{LISTING}\ncat /dev/shm/said\n"
    done = subprocess.run(argv, input=whole.encode(), capture_output=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    *answers, listing = done.stdout.decode(errors="replace").split("\0")
    return [_answer(text) for text in answers], listing.splitlines()


def _answer(text: str) -> Answer:
    code, _, output = text.partition("\n")
    return int(code), output


async def in_sandbox(runtime: Runtime, tree: Path, cache: Path) -> tuple[list[Answer], list[str]]:
    """Return the answers of a sandbox of the tree, and the listing."""
    limits = Limits(cpus=2, memory_bytes=2 << 30, disk_bytes=1 << 30)
    async with (
        SandboxFactory(runtime, cache=cache) as sandboxes,
        await sandboxes.start(SandboxSpec(parse_image(os.fspath(tree)), limits)) as sandbox,
    ):
        await sandbox.bash("cd / && rm -rf /workspace /home/agent", SECONDS)
        answers = []
        for command in COMMANDS:
            text = await sandbox.bash(wrapped(command), SECONDS)
            answers.append(_answer(text.output) if text.exit_code is not None else (-1, text.output))
        assert (await sandbox.bash(LISTING, SECONDS)).exit_code == 0
        return answers, (await sandbox.read_file("/dev/shm/said", 64 << 20)).decode(errors="replace").splitlines()


if __name__ == "__main__":
    name, tree, folder = sys.argv[1:]
    found = find_runtime(cast(RuntimeName, name), Path(folder))
    print(json.dumps(asyncio.run(in_sandbox(found, Path(tree), Path(folder)))))

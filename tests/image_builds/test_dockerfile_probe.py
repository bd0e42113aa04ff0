"""One Dockerfile with all that people write beyond the basics, and what Docker makes of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.image_builds.conftest import Builder

pytestmark = pytest.mark.slow(20)

PROBE = """\
# syntax=docker/dockerfile:1.7
# escape=\\

arg V=1
ARG BASE=../base
FROM ${BASE} AS A
RUN [ -z "$V" ] && echo a > /a
from $BASE as Last
ARG V
ARG W
ONBUILD RUN false
STOPSIGNAL SIGTERM
HEALTHCHECK NONE
HEALTHCHECK --interval=5s CMD true
ENV V2=${V:-d} W2=${W:-d} X=${V:+x} Y=${W:+y} A="x y" B=$A/z P=a\\ b
ENV C=$A/z
WORKDIR app
WORKDIR sub
COPY --from=a /a /from-a
COPY --link --chmod=a+rX,go-w --chown=app:app tree /tree
COPY <<"E" /f
$V \\ as it is
E
COPY <<E /g
$V
E
RUN <<E
#!/bin/awk -f
BEGIN { print "awk" > "/awk" }
E
ADD x.tar.gz /d/
ADD http://HOST/served/file /added/
COPY a* dst/
COPY . .
RUN echo one && \\
    # a comment in the middle
    echo two > /two

SHELL ["/bin/sh", "-e", "-c"]
RUN echo "$-" > /flags
USER 1234:999
entrypoint ["/bin/refuses"]
CMD exit 3
"""


@pytest.fixture
def server(open_folder: Path) -> Iterator[str]:
    (open_folder / "served").mkdir()
    (open_folder / "served/file").write_text("over http\n")
    handler = partial(SimpleHTTPRequestHandler, directory=str(open_folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever).start()
        yield f"127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.parametrize("end", ["\n", pytest.param("\r\n", marks=pytest.mark.long)])
async def test_a_dockerfile_beyond_the_basics(builder: Builder, server: str, end: str) -> None:
    context = builder.context
    builder.write({"a1": "1", "a2": "2", "tree/run": "r", "tree/sub/plain": "p", "keep/me": "k", "leave/it": "l"})
    builder.write({".dockerignore": "*\n!a*\n!tree\n!keep\n!link\n!empty\n!x.tar.gz\n", "real": "linked"})
    (context / "tree/run").chmod(0o770)
    (context / "tree/sub").chmod(0o700)
    (context / "tree/sub/plain").chmod(0o662)
    (context / "link").symlink_to("keep/me")
    (context / "empty").mkdir()
    subprocess.run(["tar", "czf", "x.tar.gz", "keep"], cwd=context, check=True)
    (context / "a3").symlink_to("keep/me")
    root = await builder.root(PROBE.replace("HOST", server).replace("\n", end))

    def text(name: str) -> str:
        return (root / name).read_text()

    def mode(name: str) -> int:
        return stat.S_IMODE((root / name).stat().st_mode)

    config = json.loads(text(".rollyard-image.json"))
    assert config["env"] == {
        "V2": "1", "W2": "d", "X": "x", "Y": "", "A": "x y", "B": "/z", "P": "a b", "C": "x y/z",
    }  # fmt: skip
    assert (config["workdir"], config["user"]) == ("/app/sub", "1234:999")
    assert (config["entrypoint"], config["cmd"]) == (["/bin/refuses"], ["/bin/sh", "-e", "-c", "exit 3"])
    assert (text("from-a"), text("f"), text("g"), text("awk")) == ("a\n", "$V \\ as it is\n", "1\n", "awk\n")
    assert [mode(f"tree{name}") for name in ("/run", "/sub", "/sub/plain")] == [0o755, 0o755, 0o644]
    assert "e" in text("flags")
    assert (text("d/keep/me"), text("added/file"), text("two")) == ("k", "over http\n", "two\n")
    work = root / "app/sub"
    assert sorted(os.listdir(work / "dst")) == ["a1", "a2", "a3"]
    assert not (work / "dst/a3").is_symlink(), "a link that COPY names gives its target's content"
    assert text("app/sub/dst/a3") == "k"
    assert sorted(os.listdir(work)) == ["a1", "a2", "a3", "dst", "empty", "keep", "link", "tree", "x.tar.gz"]
    assert (os.readlink(work / "link"), os.listdir(work / "empty")) == ("keep/me", [])
    (context / "keep/me").write_text("changed")
    await builder.build(PROBE.replace("HOST", server).replace("\n", end))
    assert "COPY a* dst/" in builder.done, "the target of a link is another"
    assert "ADD x.tar.gz /d/" not in builder.done

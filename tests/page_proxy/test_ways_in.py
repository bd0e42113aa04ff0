"""Ways of other sites, other ports, other users and strange clients to read through the proxy, or to change something. None
works, and the browser that is signed in goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import AsyncExitStack
from functools import partial

import pytest
import pytest_asyncio

from rollyard.client.kubeconfig import load_context
from rollyard.page_proxy import main
from rollyard.page_proxy.browser_sessions import CODE_SECONDS
from tests.page_proxy.conftest import RunningProxy, start
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")
NOBODY = 65534
SECRET = "/v1/endings"
"""A path whose answer everybody knows: what must not come out."""
HONEST = b'"endings"'
OWN = "Host: {host}"
IN = "Cookie: {cookie}"
"""Header that the user's browser adds by itself to the request of a page."""


def ask(line: str, *headers: str, host: str = OWN, body: str = "") -> str:
    lines = [line, *([host] if host else []), "Connection: close", *headers]
    return "\r\n".join([*lines, "", body])


def get(path: str, *headers: str, host: str = OWN) -> str:
    return ask(f"GET {path} HTTP/1.1", *headers, host=host)


WAYS = {
    # without the cookie
    "no cookie": get(SECRET),
    "no cookie, the page": get("/ui/"),
    "no cookie, the root": get("/"),
    "empty cookie": get(SECRET, "Cookie: {name}="),
    "wrong cookie": get(SECRET, "Cookie: {name}=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    "cookie of another name": get(SECRET, "Cookie: rollyard_ui={value}"),
    "cookie's name in capitals": get(SECRET, "Cookie: {NAME}={value}"),
    "cookie cut short": get(SECRET, "Cookie: {name}={value_cut}"),
    "cookie in quotes": get(SECRET, 'Cookie: {name}="{value}"'),
    "cookie with spaces inside": get(SECRET, "Cookie: {name} = {value}"),
    "two wrong cookies": get(SECRET, "Cookie: {name}=a; {name}=b", "Cookie: {name}=c"),
    "cookie that is no ASCII": get(SECRET, "Cookie: {name}=\xff\xfe"),
    "cookie as a header of its own": get(SECRET, "{name}: {value}"),
    "cookie in the query": get(SECRET + "?{name}={value}"),
    "the code as the cookie": get(SECRET, "Cookie: {name}={code}"),
    "the code as a bearer token": get(SECRET, "Authorization: Bearer {code}"),
    "the cookie as a bearer token": get(SECRET, "Authorization: Bearer {value}"),
    "the code at the API": get(SECRET + "?code={code}"),
    "token in the query": get(SECRET + "?token={code}&access_token={code}"),
    "basic authentication": get(SECRET, "Authorization: Basic cm9vdDpyb290"),
    # codes
    "used code": get("/ui/?code={used}"),
    "no code": get("/ui/?code="),
    "guessed code": get("/ui/?code=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    "code cut short": get("/ui/?code={code_cut}"),
    "code with a blank": get("/ui/?code={code}%20"),
    "code in the fragment": get("/ui/#code={code}"),
    "code behind a wrong one": get("/ui/?code=a&code={code}"),
    "code with HEAD": ask("HEAD /ui/?code={code} HTTP/1.1"),
    "code in a form": ask("POST /ui/ HTTP/1.1", "Content-Length: 48", body="code={code}"),
    "header in the code": get("/ui/?code=a%0d%0aSet-Cookie:%20{name}=b"),
    "bare line end in the code": get("/ui/?code=a\nSet-Cookie: {name}=b"),
    "other address behind the code": get("/ui/?code={used}&next=https://evil.example/"),
    "code on another path": get("/ui/index.html?code={code}"),
    # names of this machine (DNS rebinding), with the cookie
    "other host": get(SECRET, IN, host="Host: evil.example"),
    "other host with our port": get(SECRET, IN, host="Host: evil.example:{port}"),
    "host that begins like ours": get(SECRET, IN, host="Host: 127.0.0.1.evil.example"),
    "host that ends like ours": get(SECRET, IN, host="Host: evil.localhost"),
    "host with a user": get(SECRET, IN, host="Host: evil@127.0.0.1:{port}"),
    "host with a path": get(SECRET, IN, host="Host: 127.0.0.1/evil"),
    "host with a dot": get(SECRET, IN, host="Host: localhost.:{port}"),
    "host as a number": get(SECRET, IN, host="Host: 2130706433:{port}"),
    "host of all addresses": get(SECRET, IN, host="Host: 0.0.0.0:{port}"),
    "host with a wrong port": get(SECRET, IN, host="Host: 127.0.0.1:123456"),
    "empty host": get(SECRET, IN, host="Host:"),
    "no host": get(SECRET, IN, host=""),
    "two hosts": get(SECRET, IN, "Host: evil.example"),
    "two hosts, the other first": get(SECRET, IN, "Host: {host}", host="Host: evil.example"),
    "absolute target of another host": get("http://evil.example" + SECRET, IN),
    "absolute target of our host": get("http://{host}" + SECRET, IN),
    "https as a scheme": get("https://{host}" + SECRET, IN),
    "code under another host": get("/ui/?code={code}", host="Host: evil.example:{port}"),
    "X-Forwarded-Host": get(SECRET, IN, "X-Forwarded-Host: {host}", host="Host: evil.example"),
    "Forwarded": get(SECRET, IN, "Forwarded: host={host};for=127.0.0.1", host="Host: evil.example"),
    # pages of other sites and ports in the user's browser
    "origin of another site": get(SECRET, IN, "Origin: https://evil.example"),
    "origin null": get(SECRET, IN, "Origin: null"),
    "origin of another port": get(SECRET, IN, "Origin: http://127.0.0.1:1"),
    "origin by another name of this machine": get(SECRET, IN, "Origin: http://localhost:{port}"),
    "our origin with https": get(SECRET, IN, "Origin: https://{host}"),
    "two origins": get(SECRET, IN, "Origin: http://{host}", "Origin: https://evil.example"),
    "cross-site": get(SECRET, IN, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    "another port of this machine": get(SECRET, IN, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"),
    "another port opens the API": get(SECRET, IN, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate"),
    "two values of Sec-Fetch-Site": get(SECRET, IN, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"),
    "the code in a frame": get("/ui/?code={code}", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
                               "Sec-Fetch-Dest: iframe"),
    "the code in a script": get("/ui/?code={code}", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors",
                                "Sec-Fetch-Dest: script"),
    "the code by fetch of another origin": get("/ui/?code={code}", "Origin: https://evil.example"),
    # what changes something, or opens a tunnel
    **{f"{method}": ask(f"{method} /v1/rollouts HTTP/1.1", IN, "Sec-Fetch-Site: same-origin", "Content-Length: 2", body="{{}}")
       for method in ("POST", "PUT", "PATCH", "DELETE")},
    "DELETE without a body": ask("DELETE /v1/rollouts?pool=demo HTTP/1.1", IN),
    "method in small letters": ask("get /v1/endings HTTP/1.1", IN),
    "other method in a header": ask("POST /v1/endings HTTP/1.1", IN, "X-HTTP-Method-Override: GET"),
    "OPTIONS": ask("OPTIONS /v1/endings HTTP/1.1", IN),
    "preflight": ask("OPTIONS /v1/rollouts HTTP/1.1", "Origin: https://evil.example", "Access-Control-Request-Method: POST"),
    "OPTIONS of everything": ask("OPTIONS * HTTP/1.1", IN),
    "TRACE": ask("TRACE /v1/endings HTTP/1.1", IN),
    "CONNECT": ask("CONNECT 127.0.0.1:22 HTTP/1.1", IN),
    "WebSocket": get("/v1/rollouts/r/attach", IN, "Upgrade: websocket", "Connection: Upgrade",
                     "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    "WebSocket of our origin": get("/v1/rollouts/r/attach", IN, "Upgrade: websocket", "Connection: Upgrade",
                                   "Origin: http://{host}", "Sec-WebSocket-Version: 13",
                                   "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    "HTTP/2 upgrade": get(SECRET, IN, "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"),
    # paths that servers read in different ways
    "dots": get("/ui/../v1/endings", IN),
    "encoded dots": get("/ui/%2e%2e/v1/endings", IN),
    "half encoded dots": get("/ui/.%2E/v1/endings", IN),
    "encoded slash": get("/ui/..%2fv1/endings", IN),
    "twice encoded dots": get("/ui/%252e%252e/v1/endings", IN),
    "two slashes": get("//evil.example/v1/endings", IN),
    "two slashes inside": get("/v1//endings", IN),
    "backslash": get("/\\evil.example/v1/endings", IN),
    "encoded backslash": get("/ui/..%5cv1/endings", IN),
    "NUL": get("/v1/endings\0", IN),
    "encoded NUL": get("/v1/endings%00", IN),
    "encoded line end": get("/v1/endings%0d%0aX: y", IN),
    "broken encoding": get("/v1/endings%zz", IN),
    "semicolons": get("/v1/endings;/../x", IN),
    "no ASCII": get("/v1/endings\xe9", IN),
    "path without a slash": get("v1/endings", IN),
    "files beside the page's": get("/ui/../../core/errors.py", IN),
    "hidden files": get("/ui/.git", IN),
    "Python files": get("/ui/__init__.py", IN),
    "node agents' paths": get("/v1/node/connect", IN),
    "node agents' paths, encoded": get("/v1/%6eode/connect", IN),
    "engines' paths": get("/v1/engine/x", IN),
    "the gateway": get("/gateway/x/v1/models", IN),
    "calls to an engine": get(
        "/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools/p/weights/%65ndpoints/e/metrics", IN
    ),
    # messages that two parsers cut in different places
    "two lengths of a body": ask("POST /v1/rollouts HTTP/1.1", IN, "Content-Length: 0", "Content-Length: 40",
                                 body="GET /v1/endings HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    "length and chunks": ask("GET /ui/ HTTP/1.1", IN, "Content-Length: 4", "Transfer-Encoding: chunked",
                             body="0\r\n\r\nGET /v1/endings HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"),
    "chunks to read something": ask("GET /v1/endings HTTP/1.1", IN, "Transfer-Encoding: chunked", body="0\r\n\r\n"),
    "odd chunks": ask("GET /v1/endings HTTP/1.1", IN, "Transfer-Encoding: xchunked"),
    "blank before the colon": get(SECRET, IN, "Content-Length : 3"),
    "continued line": get(SECRET, "X: a\r\n " + IN),
    "bare line ends": f"GET {SECRET} HTTP/1.1\nHost: {{host}}\nCookie: {{cookie}}\n\n",
    "request behind a refused one": ask("POST /v1/endings HTTP/1.1", "Content-Length: 3",
                                        body="abcGET /v1/endings HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"),
    "no body of the announced length": ask("POST /v1/rollouts HTTP/1.1", IN, "Content-Length: 1000000"),
    "waits for permission": ask("POST /v1/rollouts HTTP/1.1", IN, "Content-Length: 9", "Expect: 100-continue"),
    "HTTP/1.0": ask(f"GET {SECRET} HTTP/1.0", IN),
    "HTTP/0.9": f"GET {SECRET}\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\0" * 40,
    "huge header": get(SECRET, IN, "X: " + "x" * 40_000),
    "many headers": get(SECRET, IN, *(f"X-{i}: y" for i in range(2000))),
    "huge path": get(SECRET + "?" + "x" * 40_000, IN),
    "huge cookie": get(SECRET, "Cookie: " + "a=b; " * 10_000 + "{cookie}"),
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="package")
async def ready(proxy: RunningProxy) -> RunningProxy:
    """A proxy with one browser that is signed in, and one code that is not used."""
    await proxy.get("/ui/")  # without a usable code the terminal gets a new one
    return proxy


def filled(text: str, proxy: RunningProxy) -> bytes:
    name, _, value = proxy.cookie.partition("=")
    used = proxy.announced[0].partition("code=")[2]
    words = {"host": proxy.host, "port": str(proxy.port), "cookie": proxy.cookie, "name": name, "NAME": name.upper()}
    words |= {"value": value, "value_cut": value[:-1], "code": proxy.code, "code_cut": proxy.code[:-1], "used": used}
    return text.format(**words).encode("latin-1")


@pytest.mark.parametrize("way", WAYS)
async def test_no_way_in(ready: RunningProxy, way: str) -> None:
    answer = await ready.send(filled(WAYS[way], ready))
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert HONEST not in answer
    assert not answer or answer.split(None, 2)[1][:1] in (b"4", b"5"), answer[:300]
    assert answer.count(b"HTTP/1.1 ") <= 1, "a second message was read"
    assert not any(word in head for word in (b"set-cookie", b"location", b"access-control"))
    assert HONEST in await ready.read(SECRET)
    await ready.sign_in()  # the code is still good


async def test_a_code_expires(ready: RunningProxy) -> None:
    old = ready.code
    ready.clock.turn(CODE_SECONDS)
    assert (await ready.get(f"/ui/?code={old}")).startswith(b"HTTP/1.1 401")
    assert ready.code != old, "the terminal has a new address"
    assert b"Set-Cookie" in await ready.get(f"/ui/?code={ready.code}")


async def test_wrong_codes_do_not_fill_the_terminal(ready: RunningProxy) -> None:
    before = len(ready.announced)
    for _ in range(50):
        assert (await ready.get("/ui/?code=x")).startswith(b"HTTP/1.1 401")
    assert len(ready.announced) == before


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:9", "[::1]:5000"])
async def test_an_honest_browser_comes_in_under_any_port_of_its_machine(ready: RunningProxy, host: str) -> None:
    """Behind `ssh -L` the browser has another port, and may call its machine by another name."""
    named = host.format(port=ready.port)
    words = ["Sec-Fetch-Site: same-origin", f"Origin: http://{named}", f"Cookie: a=b; {ready.cookie}; c=d"]
    lines = [f"GET {SECRET} HTTP/1.1", f"Host: {named}", "Connection: close", *words]
    assert HONEST in await ready.send("\r\n".join([*lines, "", ""]).encode())


async def test_a_cookie_of_another_port_with_our_name_shuts_nobody_out(ready: RunningProxy) -> None:
    name = ready.cookie.partition("=")[0]
    assert HONEST in await ready.get(SECRET, f"Cookie: {name}=tossed; {ready.cookie}")


async def test_a_cookie_is_of_one_proxy(ready: RunningProxy, proxy: RunningProxy) -> None:
    assert ready.cookie.partition("=")[0].startswith("rollyard_ui_")
    answer = await ready.get(f"/ui/?code={ready.code}")
    assert b"; HttpOnly; Path=/; SameSite=Strict" in answer
    assert ready.code.encode() not in answer, "the browser is led away from the code"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
async def test_another_user_of_this_machine_does_not_come_in_with_a_cookie_or_a_code(ready: RunningProxy) -> None:
    """Cookies do not know ports: a browser sends ours to each server of this machine that its user visits."""
    command = ["bash", "-c", 'exec 3<>"/dev/tcp/127.0.0.1/$0"; cat >&3; cat <&3', str(ready.port)]
    for wanted in (get(SECRET, IN), get("/ui/?code={code}"), get("/ui/", IN)):
        call = partial(subprocess.run, command, input=filled(wanted, ready), capture_output=True, check=False)
        assert (await asyncio.to_thread(call)).stdout.startswith(b"HTTP/1.1 ")
        done = await asyncio.to_thread(call, user=NOBODY, cwd="/")
        assert done.stdout.startswith(b"HTTP/1.1 403"), (done.stdout[:200], done.stderr[-300:])


async def test_a_header_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, yard: Yard) -> None:
    monkeypatch.setattr(main, "HEADER_SECONDS", 0.3)
    async with AsyncExitStack() as stack:
        proxy = await start(load_context(yard.data / "admin.kubeconfig"), stack)
        assert await proxy.send(b"GET /v1/endings HTTP/1.1\r\nHost: x\r\nX: ") == b""

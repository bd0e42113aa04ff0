"""A real browser: it signs in once, and pages of other sites and ports that are open in it get nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from simulation.serving import serve_app
from tests.page_proxy.conftest import RunningProxy
from tests.support.browser import Browser

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]

ATTACK = """
(async () => {
  const target = TARGET, got = {};
  const soon = (made) => Promise.race([made, new Promise((done) => setTimeout(() => done('silence'), 1500))]);
  const read = async (name, options) => {
    got[name] = await soon(fetch(target, options).then((answer) => answer.text()).catch(() => 'refused'));
  };
  const loaded = (name, tag, fields) => soon(new Promise((done) => {
    const element = Object.assign(document.createElement(tag), fields);
    element.onload = () => {
      try { done(tag === 'iframe' ? element.contentDocument.body.textContent : 'loaded'); } catch { done('closed'); }
    };
    element.onerror = () => done('refused');
    document.body.append(element);
  })).then((t) => { got[name] = t; });
  const opened = (name, make) => soon(new Promise((done) => {
    const one = make();
    one.onopen = one.onmessage = () => done('open');
    one.onerror = () => done('refused');
  })).then((t) => { got[name] = t; });
  await Promise.all([
    read('fetch', {}),
    read('fetch with cookies', {credentials: 'include'}),
    read('opaque fetch', {credentials: 'include', mode: 'no-cors'}),
    read('POST', {credentials: 'include', mode: 'no-cors', method: 'POST', body: 'x'}),
    read('preflight', {credentials: 'include', method: 'DELETE'}),
    loaded('script', 'script', {src: target}),
    loaded('module', 'script', {src: target, type: 'module'}),
    loaded('style', 'link', {rel: 'stylesheet', href: target}),
    loaded('picture', 'img', {src: target}),
    loaded('frame', 'iframe', {src: target}),
    loaded('object', 'object', {data: target}),
    opened('events', () => new EventSource(target, {withCredentials: true})),
    opened('socket', () => new WebSocket(target.replace('http', 'ws'))),
  ]);
  return got;
})()
"""
NOTHING = {"refused", "silence", "closed", ""}


@pytest_asyncio.fixture(loop_scope="package")
async def other() -> AsyncIterator[str]:
    """URL of another user's page on this machine; it asks for /link?to=URL to have a link."""

    async def page(request: web.Request) -> web.Response:
        link = f'<a href="{request.query.get("to", "")}">this way</a>'
        return web.Response(text=f"<!doctype html><title>other</title><body>{link}", content_type="text/html")

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    async with serve_app(app) as url:
        yield url


async def signed_in_address(proxy: RunningProxy) -> str:
    await proxy.get("/ui/")  # without a usable code the terminal gets a new one
    return proxy.address


async def test_a_browser_signs_in_once_and_sees_neither_code_nor_cookie(proxy: RunningProxy, browser: Browser) -> None:
    address = await signed_in_address(proxy)
    tab = await browser.tab(address)
    await tab.until(f"location.href === '{proxy.page}' && document.readyState === 'complete'")
    assert await tab.evaluate("document.cookie") == ""
    assert await tab.evaluate("document.referrer") == ""
    assert await tab.evaluate("fetch('/v1/endings').then(answer => answer.status)") == 200
    assert (
        await tab.evaluate("fetch('/v1/rollouts', {method: 'POST', body: '{}'}).then(answer => answer.status)") == 405
    )
    await tab.go(address)
    await tab.until(f"location.href === '{proxy.page}'")
    stranger = await browser.tab(address)
    await stranger.until("document.body?.textContent.includes('this browser is not signed in')")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_link_on_another_page_signs_in_too(
    proxy: RunningProxy, browser: Browser, other: str, name: str
) -> None:
    """A terminal in the browser has such links. A strict cookie is not sent along what another site began."""
    address = await signed_in_address(proxy)
    tab = await browser.tab(other.replace("127.0.0.1", name) + f"/link?to={address}")
    await tab.click("a")
    await tab.until(f"location.href === '{proxy.page}' && document.readyState === 'complete'")
    assert await tab.evaluate("fetch('/v1/endings').then(answer => answer.status)") == 200


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_page_of_another_port_or_site_gets_nothing(
    proxy: RunningProxy, browser: Browser, other: str, name: str
) -> None:
    tab = await browser.tab(await signed_in_address(proxy))
    await tab.until(f"location.href === '{proxy.page}'")
    await tab.go(other.replace("127.0.0.1", name))
    await tab.until("document.title === 'other'")
    for path in ("/v1/endings", "/v1/rollouts/stream", "/ui/index.html"):
        got = await tab.evaluate(ATTACK.replace("TARGET", f"'http://{proxy.host}{path}'"))
        assert len(got) == 13
        assert set(got.values()) <= NOTHING, got
    await tab.go(proxy.page)
    assert await tab.evaluate("fetch('/v1/endings').then(answer => answer.status)") == 200, "the user goes on"

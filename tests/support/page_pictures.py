"""Pictures of the page of a running server, and the faults that a browser finds in it.

    python -m tests.support.page_pictures --kubeconfig DATA/admin.kubeconfig --out FOLDER [#/pools #/rollouts/ID ...]
    python -m tests.support.page_pictures --demo --out FOLDER [#/rollouts/tasks-g0.0 ...]

Without addresses it shows all views of the navigation: at 1280 and 390 pixels, light and dark. --demo: those of the recorded
training.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path

from rollyard.client.kubeconfig import load_context
from rollyard.page_proxy.main import listen
from rollyard.page_proxy.recorded_server import served_recording
from rollyard.page_proxy.recording import RECORDING
from tests.support.browser import Tab, chromium

WIDTHS = {1280: 800, 390: 844}
VIEWS = "[...document.querySelectorAll('nav a')].map(link => link.getAttribute('href'))"
READY = "document.querySelector('main')?.textContent.length > 0"


async def take(kubeconfig: Path, out: Path, addresses: list[str], widths: list[int], *, axe: bool) -> int:
    """Write the pictures; print the faults and return their number."""
    out.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        announced: list[str] = []
        await listen(load_context(kubeconfig), 0, announced.append, stack)
        browser = await stack.enter_async_context(chromium())
        tab = await browser.tab(announced[0])
        await tab.until(READY)
        await tab.settle()
        faults = [f"first view: {fault}" for fault in tab.faults]
        page = announced[0].partition("?")[0]
        for address in addresses or await tab.evaluate(VIEWS):
            for width in widths:
                for dark in (False, True):
                    tab.faults.clear()
                    name = f"{re.sub(r'[^A-Za-z0-9]+', '-', address).strip('-') or 'page'}-{width}{'-dark' * dark}"
                    await _show(tab, page + address, width, dark)
                    (out / f"{name}.png").write_bytes(await tab.picture())
                    found = [*tab.faults, *(await tab.axe() if axe else [])]
                    if await tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        found.append("the page is wider than the window")
                    faults += [f"{name}: {fault}" for fault in found]
                    print(out / f"{name}.png")
    print("\n".join(faults) or "no faults")
    return len(faults)


async def _show(tab: Tab, url: str, width: int, dark: bool) -> None:
    await tab.look(width=width, height=WIDTHS.get(width, 800), dark=dark)
    await tab.go("about:blank")  # a new document, also where only the part after # differs
    await tab.go(url)
    await tab.until(READY)
    await tab.settle()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--kubeconfig", type=Path)
    server.add_argument("--demo", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--no-axe", action="store_true", help="without the search for faults of accessibility")
    parser.add_argument("addresses", nargs="*", metavar="#/VIEW")
    given = parser.parse_args()
    widths = given.width or list(WIDTHS)
    with served_recording(RECORDING) if given.demo else nullcontext(given.kubeconfig) as kubeconfig:
        faults = asyncio.run(take(kubeconfig, given.out, given.addresses, widths, axe=not given.no_axe))
    raise SystemExit(faults > 0)


if __name__ == "__main__":
    main()

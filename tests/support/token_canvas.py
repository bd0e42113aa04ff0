"""Pixels of the canvas on which a trajectory's tokens are drawn."""

from __future__ import annotations

import io
import json

import numpy as np
from matplotlib.image import imread

from tests.support.browser import Tab

DRAWN = "document.querySelector('.tokens canvas[style]') !== null"
LINE = "document.querySelector('.token-line').innerText"
ROW = 22
"""Pixels of a row."""
PIXELS = """((width) => {
  const canvas = document.querySelector('.tokens canvas');
  const pen = new OffscreenCanvas(width, canvas.height).getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  return new Uint32Array(pen.getImageData(0, 0, width, canvas.height).data.buffer);
})"""
"""Colours of the left part of the canvas."""
NUMBERS = """(() => {
  const [box, line] = ['.tokens', '.token-line'].map((one) => document.querySelector(one).getBoundingClientRect());
  return [box.left + 2, box.top + 2, Math.min(box.bottom, line.top) - 2].map(Math.round);
})()"""
"""Left, top and bottom of the rows' numbers in sight."""
PLACES = """((property, name) => {
  const canvas = document.querySelector('.tokens canvas'), { width } = canvas, pixels = PIXELS(width);
  const box = canvas.closest('.tokens'), token = box.appendChild(document.createElement('i'));
  const one = new OffscreenCanvas(1, 1).getContext('2d');
  token.className = `tok ${name}`;
  for (const colour of [getComputedStyle(box).backgroundColor, getComputedStyle(token)[property]]) {
    one.fillStyle = colour;
    one.fillRect(0, 0, 1, 1);
  }
  token.remove();
  const [wanted] = new Uint32Array(one.getImageData(0, 0, 1, 1).data.buffer);
  box.scrollIntoView({ block: 'center' });
  const { x, y } = canvas.getBoundingClientRect(), found = [];
  pixels.forEach((pixel, n) => { if (pixel === wanted) found.push([x + n % width, y + Math.floor(n / width)]); });
  return found;
})""".replace("PIXELS", PIXELS)


async def places(tab: Tab, name: str, property: str = "backgroundColor") -> list[tuple[float, float]]:
    """Bring the tokens into sight. Return the places in the window with a colour of a kind of tokens."""
    return [(x, y) for x, y in await tab.evaluate(f"{PLACES}({json.dumps(property)}, {json.dumps(name)})")]


def gap(picture: bytes, left: int, top: int, bottom: int) -> int:
    """Return the most lines of pixels without a part of a row's number. More than `ROW`: a row is missing."""
    pixels = imread(io.BytesIO(picture))[top:bottom, left : left + 48, :3]
    written = (abs(pixels - np.median(pixels, axis=(0, 1))).sum(axis=2) > 0.2).any(axis=1)
    return int(np.diff([-1, *np.flatnonzero(written), len(written)]).max()) - 1


async def press(tab: Tab, key: str, *, control: bool = False) -> str:
    """Move to another token by a key. Return what the page says of it."""
    before = await tab.evaluate(LINE)
    event = json.dumps({"key": key, "ctrlKey": control, "bubbles": True})
    await tab.evaluate(f"document.querySelector('.tokens').dispatchEvent(new KeyboardEvent('keydown', {event}))")
    await tab.until(f"{LINE} !== {json.dumps(before)}")
    return str(await tab.evaluate(LINE))


async def point(tab: Tab, x: float, y: float) -> None:
    """Move the mouse to a place in the window."""
    await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

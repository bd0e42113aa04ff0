"""An HTML file to send to somebody: no script, no request, all text escaped, in the reader's light or dark setting. Pure.

The policy in the file's head forbids scripts and every request, so even a mistake in the escaping could run nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --dim: #666; --line: #d8d8d8; --sheet: #f6f6f6; }
@media (prefers-color-scheme: dark) { :root { --ground: #161616; --ink: #e6e6e6; --dim: #9a9a9a; --line: #3a3a3a;
  --sheet: #202020; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1000px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { font-size: 17px; overflow-wrap: anywhere; }
h3 { font-size: 13px; color: var(--dim); margin: 20px 0 4px; font-weight: 600; }
section { border-top: 1px solid var(--line); margin-top: 24px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def document(title: str, body: str, style: str) -> str:
    """Return the file. `body`: HTML; `style`: CSS beside that of all files."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<title>{escaped(title)}</title>\n'
        f"<style>{_STYLE}{style}</style>\n</head>\n<body>\n<h1>{escaped(title)}</h1>\n{body}</body>\n</html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and values."""
    rows = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>\n" for name, value in pairs)
    return f"<dl>\n{rows}</dl>\n"


def escaped(value: Any) -> str:
    """Return escaped text. Controls and marks that turn the direction of text become visible signs."""
    return escape("".join(map(_visible, str(value))), quote=True)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20 and character not in "\n\t":
        return chr(0x2400 + code)
    hidden = (
        code == 0x7F
        or 0x80 <= code < 0xA0
        or 0x202A <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
        or 0xD800 <= code < 0xE000
    )
    return f"⟨U+{code:04X}⟩" if hidden else character

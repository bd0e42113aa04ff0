"""The `editor` tool: view, create, str_replace and insert on text files, by exact strings and line numbers.

If arguments are wrong, or a file cannot be read or written, a call returns a message for the model and does not raise.
An edit keeps bytes that are not UTF-8. Only a line feed ends a line, so line numbers are those of `grep -n`. A view does
not show the "\\r" of a line that ends with "\\r\\n"; so a text without "\\r" fits lines with either end, and new lines get the
end of their neighbours.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rollyard.sandbox_agent.output_capture import OutputCapture
from rollyard.sandbox_agent.settings import WORKSPACE
from rollyard.sandbox_agent.whole_files import read_file, write_file

MAX_FILE_BYTES = 8 << 20
MAX_LISTED = 500
SNIPPET_LINES = 4
MOST_SHOWN = 300
"""Greatest number of characters of a path or a value in an error message."""


class EditError(Exception):
    """A mistake of the model. The text of the exception contains a remedy."""


def edit(command: str, path: str, arguments: Mapping[str, Any], workdir: str = WORKSPACE) -> tuple[str, bool]:
    """Run one call; return the answer, and whether the call succeeded. Relative paths start in `workdir`."""
    try:
        for text in (path, *arguments, *arguments.values()):
            if isinstance(text, str):
                _encoded(text)
        if command not in _COMMANDS:
            raise EditError(f"there is no command {_named(command)}; the commands are: {', '.join(_COMMANDS)}")
        if not isinstance(path, str) or not path or "\0" in path:
            raise EditError("`path` must be the path of a file")
        action, needed, optional = _COMMANDS[command]
        return action(os.path.join(workdir, path), **_checked(command, arguments, needed, optional)), True
    except EditError as error:
        return f"Error: {error}.", False
    except OSError as error:
        remedy = "; `sed`, `head` and `grep` in bash can read and edit it" if error.errno == errno.EFBIG else ""
        return f"Error: {_shown(path)}: {error.strerror}{remedy}.", False
    except UnicodeEncodeError:
        return "Error: an argument contains half of a surrogate pair; write the whole character.", False


def _shown(text: str) -> str:
    """Shorten a path or a name for a message: a model may write a whole file in its place."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(text)} characters)"


def _named(value: object) -> str:
    return repr(_shown(value)) if isinstance(value, str) else _shown(repr(value))


def _checked(command: str, given: Mapping[str, Any], needed: set[str], optional: set[str]) -> dict[str, Any]:
    present = {name: value for name, value in given.items() if value is not None}
    if missing := sorted(needed - present.keys()):
        raise EditError(f"`{command}` needs {' and '.join(f'`{name}`' for name in missing)}")
    if unknown := sorted(present.keys() - needed - optional):
        takes = ", ".join(f"`{name}`" for name in ("path", *sorted(needed | optional)))
        raise EditError(f"`{command}` does not take `{_shown(unknown[0])}`; it takes {takes}")
    for name, value in present.items():
        if not _TYPES[name][0](value):
            raise EditError(f"`{name}` must be {_TYPES[name][1]}")
    return present


def _view(path: str, view_range: list[int] | None = None) -> str:
    if os.path.isdir(path):
        if view_range is not None:
            raise EditError(f"`view_range` is for files, and {_shown(path)} is a folder; leave it out")
        return _listing(path)
    text = _read(path)
    count = _count_lines(text)
    first, last = _range(view_range, count) if view_range is not None else (1, count)
    return _numbered(text, first, last) or "(empty file)"


def _range(wanted: list[int], count: int) -> tuple[int, int]:
    first, last = wanted
    if last == -1:
        last = count
    if not 1 <= first <= last <= count:
        raise EditError(
            f"`view_range` {wanted} does not fit: the file has {count} lines; "
            f"write [first, last] with 1 <= first <= last <= {count}, or -1 as last for the end"
        )
    return first, last


def _listing(path: str) -> str:
    """List the files and folders down to two levels, without hidden ones."""
    found: list[str] = []
    base = path.rstrip("/") or "/"
    for folder, folders, files in os.walk(base):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(folder, name) for name in sorted(files) if not name.startswith(".")]
        found += [os.path.join(folder, name) + "/" for name in folders]
        if folder != base:
            folders[:] = []
        if len(found) > MAX_LISTED:
            break
    shown = sorted(found)[:MAX_LISTED]
    more = ["(more left out)"] if len(found) > MAX_LISTED else []
    return "\n".join(shown + more) or "(empty folder)"


def _create(path: str, file_text: str) -> str:
    if os.path.isdir(path):
        raise EditError(f"{_shown(path)} is a folder; choose the path of a file")
    existed = os.path.exists(path)
    _write(path, file_text)
    return f"{'Replaced' if existed else 'Created'} {path}."


def _str_replace(path: str, old_str: str, new_str: str = "") -> str:
    text = _read(path)
    if not old_str:
        raise EditError("`old_str` is empty; use `insert` to add lines, or `create` to write the whole file")
    found = _places(text, old_str)
    if not found:
        raise EditError(f"`old_str` does not occur in {_shown(path)}; view the file and copy the text exactly")
    if len(found) > 1:
        numbers = ", ".join(str(text.count("\n", 0, start) + 1) for start, _ in found[:10])
        raise EditError(
            f"`old_str` occurs {len(found)} times in {_shown(path)}, in lines {numbers}; "
            "add neighbouring lines until it is unique"
        )
    start, end = found[0]
    if "\r" not in old_str + new_str:
        new_str = _with_line_ends(text, start, end, new_str)
    edited = text[:start] + new_str + text[end:]
    _write(path, edited)
    line = text.count("\n", 0, start) + 1
    return f"Edited {path}.\n" + _snippet(edited, line, line + new_str.count("\n"))


def _places(text: str, part: str) -> list[tuple[int, int]]:
    """Return begin and end of each occurrence. A line feed of `part` also fits a "\\r\\n", unless `part` has a "\\r"."""
    if "\r\n" in text and "\n" in part and "\r" not in part:
        import re  # few files need it, and it takes 5 ms

        return [found.span() for found in re.finditer("\r?\n".join(map(re.escape, part.split("\n"))), text)]
    places, at = [], text.find(part)
    while at >= 0:
        places.append((at, at + len(part)))
        at = text.find(part, at + len(part))
    return places


def _with_line_ends(text: str, start: int, end: int, new: str) -> str:
    """Return `new`, which replaces `text[start:end]`, with line ends of the text: lines at its beginning and end that do not
    change keep theirs, all others get the one of the first line."""
    old = text[start:end].split("\n")
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in old[:-1]]
    before = [line.removesuffix("\r") for line in old[:-1]] + old[-1:]
    lines = new.split("\n")
    same, same_at_end = _common(before, lines), _common(before[::-1], lines[::-1])
    other = ends[0] if ends else _end_at(text, start)
    chosen = []
    for after in range(len(lines) - 1):
        following = len(lines) - 1 - after
        if after < min(same, len(ends)):
            chosen.append(ends[after])
        else:
            chosen.append(ends[-following] if following <= min(same_at_end, len(ends)) else other)
    return "".join(line + end for line, end in zip(lines, [*chosen, ""], strict=True))


def _common(first: list[str], second: list[str]) -> int:
    """Return the number of lines at the beginning that are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(first), len(second)))


def _end_at(text: str, at: int) -> str:
    """Return the end of the line at this place; the last line has that of the line before."""
    feed = text.find("\n", at)
    if feed < 0:
        feed = text.rfind("\n")
    return "\r\n" if feed > 0 and text[feed - 1] == "\r" else "\n"


def _insert(path: str, insert_line: int, new_str: str) -> str:
    text = _read(path)
    count = _count_lines(text)
    if not 0 <= insert_line <= count:
        raise EditError(f"`insert_line` must be between 0 and {count}: the new text goes after that line")
    at = sum(len(line) for line in _lines(text, 1, insert_line))
    before, after = text[:at], text[at:]
    end = _end_at(text, max(0, at - 1))
    if before and not before.endswith("\n"):
        before += end
    added = new_str if "\r" in new_str else new_str.replace("\n", end)
    added = added if added.endswith("\n") else added + end
    edited = before + added + after
    _write(path, edited)
    return f"Edited {path}.\n" + _snippet(edited, insert_line + 1, insert_line + added.count("\n"))


def _snippet(text: str, first: int, last: int) -> str:
    return _numbered(text, max(1, first - SNIPPET_LINES), last + SNIPPET_LINES)


def _count_lines(text: str) -> int:
    return text.count("\n") + bool(text and not text.endswith("\n"))


def _lines(text: str, first: int, last: int) -> Iterator[str]:
    """Yield these lines with their ends, one at a time: a file can have millions, and this process has no limit of memory.
    (`str.splitlines` would also split at form feeds and lone "\\r".)"""
    return itertools.islice(io.StringIO(text, newline="\n"), first - 1, last)


def _numbered(text: str, first: int, last: int) -> str:
    """Return the lines with their numbers; the middle is left out if they are long."""
    shown = OutputCapture()
    for number, line in enumerate(_lines(text, first, last), first):
        bare = line.removesuffix("\n").removesuffix("\r")
        shown.feed(_encoded(f"{number:6}\t{bare}\n"))
    return shown.pop().decode("utf-8", "surrogateescape").removesuffix("\n")


def _read(path: str) -> str:
    return read_file(path, MAX_FILE_BYTES).decode("utf-8", "surrogateescape")


def _write(path: str, text: str) -> None:
    mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o644
    write_file(path, _encoded(text), mode)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_integer(number) for number in value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_Check = tuple[Callable[[object], bool], str]
_TYPES: dict[str, _Check] = {
    "file_text": (_is_text, "a string"),
    "old_str": (_is_text, "a string"),
    "new_str": (_is_text, "a string"),
    "insert_line": (_is_integer, "an integer"),
    "view_range": (_is_range, "a list of two integers, [first, last]"),
}
_COMMANDS: dict[str, tuple[Callable[..., str], set[str], set[str]]] = {
    "view": (_view, set(), {"view_range"}),
    "create": (_create, {"file_text"}, set()),
    "str_replace": (_str_replace, {"old_str"}, {"new_str"}),
    "insert": (_insert, {"insert_line", "new_str"}, set()),
}

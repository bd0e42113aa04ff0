"""Lines of metrics in Prometheus's text format, 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def family(name: str, type: str, text: str, samples: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    """Yield the lines of one metric. A sample is a pair: labels (the text between braces) and value.

    Samples whose value is None are left out.
    """
    yield f"# HELP {name} {text}\n# TYPE {name} {type}\n"
    for labels, value in samples:
        if value is not None:
            yield f"{name}{{{labels}}} {value}\n"


def label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'

"""Checks of names, labels and annotations, with the limits and error texts of Kubernetes (apimachinery, `validation`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_NAME = 63
MAX_PREFIX = 253
MAX_ANNOTATIONS_BYTES = 256 << 10
"""Greatest size of all keys and values together."""
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_QUALIFIED})?"


def name_problems(name: str) -> Iterator[str]:
    """Mistakes in the name of an object or a namespace. Such a name must be an RFC 1123 label."""
    if len(name) > MAX_NAME:
        yield f"must be no more than {MAX_NAME} characters"
    if not re.fullmatch(_LABEL, name):
        yield (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
            f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
        )


def label_problems(labels: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in labels.items():
        yield from _key_problems(key)
        if not isinstance(value, str):
            continue  # another check reports the wrong type
        if len(value) > MAX_NAME:
            yield f"{_quoted(value)}: must be no more than {MAX_NAME} characters"
        if not re.fullmatch(_VALUE, value):
            yield (
                f"{_quoted(value)}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
                "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', "
                f"regex used for validation is '{_VALUE}')"
            )


def annotation_problems(annotations: Mapping[Any, Any]) -> Iterator[str]:
    for key in annotations:
        yield from _key_problems(key.lower())
    texts = [text for item in annotations.items() for text in item if isinstance(text, str)]
    if (size := sum(len(text.encode(errors="replace")) for text in texts)) > MAX_ANNOTATIONS_BYTES:
        yield f"Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes; these are {size} bytes"


def finalizer_problems(names: Iterable[Any]) -> Iterator[str]:
    for name in names:
        if isinstance(name, str):  # another check reports the wrong type
            yield from _key_problems(name)


def _key_problems(key: str) -> Iterator[str]:
    """Mistakes in a qualified name such as `app` or `example.com/app`."""
    prefix, slash, name = key.rpartition("/")
    shown = _quoted(key)
    if slash and not prefix:
        yield f"{shown}: prefix part must be non-empty"
    elif len(prefix) > MAX_PREFIX:
        yield f"{shown}: prefix part must be no more than {MAX_PREFIX} characters"
    elif prefix and not re.fullmatch(_SUBDOMAIN, prefix):
        yield (
            f"{shown}: prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
            "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            f"'{_SUBDOMAIN}')"
        )
    if not name:
        yield f"{shown}: name part must be non-empty"
    elif len(name) > MAX_NAME:
        yield f"{shown}: name part must be no more than {MAX_NAME} characters"
    elif not re.fullmatch(_QUALIFIED, name):
        yield (
            f"{shown}: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_QUALIFIED}')"
        )


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= 100 else f'"{text[:97]}..."'

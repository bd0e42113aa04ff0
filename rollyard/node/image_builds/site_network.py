"""Proxies and CA certificates of a site, for a RUN. They are in the container while the command runs, never in the image, and
change no key of the build cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rollyard.core.errors import ImageBuildFailed

_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
PROXIES = (*_NAMES, *(name.upper() for name in _NAMES))
"""Variables that a RUN has without an ARG, as in Docker."""
_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OF_THE_MACHINE = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def proxies(arguments: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that name proxies. `arguments`: those of --build-arg, which come first."""
    return {name: value for name in PROXIES if (value := arguments.get(name, environment.get(name))) is not None}


def certificates(environment: Mapping[str, str] = os.environ, machine: Sequence[str] = _OF_THE_MACHINE) -> str | None:
    """Return the CA certificates that this process was given, and those of the machine; None if it was given none. Raises
    ImageBuildFailed."""
    given = {name: environment[name] for name in _BUNDLES if environment.get(name)}
    if not given:
        return None
    texts = []
    for name, path in given.items():
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        except OSError as error:
            raise ImageBuildFailed(
                f"${name} names {path}, which cannot be read ({error.strerror}): unset it, or correct it"
            ) from None
    for path in machine:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
            break
    return "\n".join(dict.fromkeys(texts))

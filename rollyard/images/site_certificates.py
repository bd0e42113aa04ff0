"""CA certificates of a site, in files that variables name, as for pip and curl. They count beside those of the machine."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache

BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OF_THE_MACHINE = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


def certificates(environment: Mapping[str, str] = os.environ, machine: Sequence[str] = _OF_THE_MACHINE) -> str | None:
    """Return the CA certificates that this process was given, and those of the machine; None if it was given none. Raises
    ValueError, with a sentence."""
    given = {name: environment[name] for name in BUNDLES if environment.get(name)}
    if not given:
        return None
    texts = []
    for name, path in given.items():
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        except OSError as error:
            raise ValueError(
                f"${name} names {path}, which cannot be read ({error.strerror}): unset it, or correct it"
            ) from None
    for path in machine:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
            break
    return "\n".join(dict.fromkeys(texts))


def tls_context(machine: Sequence[str] = _OF_THE_MACHINE) -> ssl.SSLContext | None:
    """Return a context that trusts these certificates; None if this process was given none. Raises ValueError, with a
    sentence."""
    text = certificates(machine=machine)
    return None if text is None else _context(text)


@lru_cache(maxsize=1)
def _context(text: str) -> ssl.SSLContext:
    found = "\n".join(_CERTIFICATE.findall(text))
    if not found:
        raise ValueError(f"{', '.join(f'${name}' for name in BUNDLES)} name no file with a certificate: correct them")
    try:
        return ssl.create_default_context(cadata=found)
    except ssl.SSLError as error:
        raise ValueError(
            f"the certificates in the files of {', '.join(f'${name}' for name in BUNDLES)} cannot be used: {error.reason}"
        ) from None

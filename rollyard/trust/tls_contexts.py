"""TLS contexts for both ends of a connection."""

from __future__ import annotations

import ssl
from pathlib import Path


def server_ssl_context(pem: Path) -> ssl.SSLContext:
    """Context for a listener; `pem` holds key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(pem)
    return context


def client_ssl_context(ca_pem: str) -> ssl.SSLContext:
    """Context for calls to Rollyard's own processes; `ca_pem` is the text of its CA's certificate."""
    return ssl.create_default_context(cadata=ca_pem)

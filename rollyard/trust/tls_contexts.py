"""TLS contexts for servers and clients."""

from __future__ import annotations

import ssl
from pathlib import Path


def server_ssl_context(pem: Path) -> ssl.SSLContext:
    """Return the context for a server. `pem`: file with key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(pem)
    return context


def client_ssl_context(ca_pem: str) -> ssl.SSLContext:
    """Return the context for calls to Rollyard's own processes. `ca_pem`: certificate of Rollyard's CA, as PEM text."""
    return ssl.create_default_context(cadata=ca_pem)

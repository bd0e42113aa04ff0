"""Log of an HTTP server without its records about malformed requests."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


class OmitMalformedRequests(logging.Filter):
    """Drops log records about malformed HTTP: any caller could fill the disk with such records. The caller gets a 400."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))

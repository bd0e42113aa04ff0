"""Fixtures of this folder."""

from tests.support.plain_sandbox import sandbox

__all__ = ["sandbox"]

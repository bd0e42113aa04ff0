"""The real API, served in the test's own process."""

from tests.api.conftest import serving

__all__ = ["serving"]

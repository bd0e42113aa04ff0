"""Imports without the search for garbage."""

import gc

import pytest

from rollyard.core import garbage_search


def test_garbage_is_searched_again_after_imports_also_after_nested_and_failed_ones() -> None:
    with garbage_search.imports():
        with pytest.raises(ImportError), garbage_search.imports():
            import rollyard.none  # type: ignore[import-not-found]  # noqa: F401
        assert not gc.isenabled()
    assert gc.isenabled()

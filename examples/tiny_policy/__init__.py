"""A policy of about a million parameters that calls Rollyard's tools, with its training code."""

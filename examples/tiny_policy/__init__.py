"""A policy of about a million parameters that calls Rollyard's tools, and all that is needed to train it."""

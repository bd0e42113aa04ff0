"""Rows of published sets of programming problems, as tasks of the kind `code`. Pure."""

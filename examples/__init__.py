"""Worked examples; nothing in the package `rollyard` imports them."""

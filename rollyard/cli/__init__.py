"""The `rollyard` command; it follows kubectl's conventions."""

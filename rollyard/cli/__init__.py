"""The `rollyard` command, with kubectl's conventions."""

"""The `rollyard` command; its manners are kubectl's."""

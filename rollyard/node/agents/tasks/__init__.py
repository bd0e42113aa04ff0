"""Built-in task handlers; plug-ins add others by the entry point group `rollyard.tasks`."""

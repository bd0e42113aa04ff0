"""Built-in task handlers; others come in by the entry point group `rollyard.tasks`."""

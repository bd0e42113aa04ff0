"""Built-in task handlers. Plug-ins add further handlers through the entry point group `rollyard.tasks`."""

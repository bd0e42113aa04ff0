"""Built-in task handlers. Plug-ins add others through the entry point group `rollyard.tasks`."""

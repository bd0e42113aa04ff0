"""The HTTP API: one file a resource family, over the store and the services."""

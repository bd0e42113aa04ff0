"""The HTTP API. Each family of routes has a module, which calls the store and the services."""

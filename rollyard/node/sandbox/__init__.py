"""The host side of a sandbox: runtimes, images, limits, and the client of the sandbox agent."""

"""The server's own CA, signed tokens, and files that contain secrets."""

"""Identities: the server's own CA, signed tokens, and the files that transport secrets."""

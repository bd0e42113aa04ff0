"""Who is who: the server's own CA, signed tokens, and the files that secrets travel in."""

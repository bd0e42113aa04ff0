"""`rollyard ui`: a reverse proxy on this machine's loopback, through which a browser sees the server's page."""

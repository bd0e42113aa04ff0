"""`python -m rollyard.sandbox_agent`: serves the Unix socket on standard input, until the socket is closed."""

from __future__ import annotations

from rollyard.sandbox_agent.server import main

if __name__ == "__main__":
    main()

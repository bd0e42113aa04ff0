"""`python -m rollyard.sandbox_agent`: serves the Unix socket that is its standard input, and ends with it."""

from __future__ import annotations

from rollyard.sandbox_agent.server import main

if __name__ == "__main__":
    main()

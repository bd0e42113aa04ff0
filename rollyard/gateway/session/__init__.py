"""One agent's session: its calls become turns and segments."""

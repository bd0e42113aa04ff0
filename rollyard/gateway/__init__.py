"""An HTTP server with the APIs of OpenAI and Anthropic, for agents with a loop of their own. The server records the
exact tokens."""

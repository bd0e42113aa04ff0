"""An HTTP server with the APIs of OpenAI and Anthropic, for agents with their own loop. It records exact tokens."""

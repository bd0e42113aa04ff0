"""An HTTP server in the shapes of OpenAI's and Anthropic's APIs for agents with their own loop; it records exact tokens."""

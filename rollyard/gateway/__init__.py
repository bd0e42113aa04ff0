"""A front in the shapes of OpenAI's and Anthropic's APIs for agents that bring their own loop; it records exact tokens."""

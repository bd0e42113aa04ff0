"""A model server for small models: tokenizers and numpy, with vLLM's HTTP API on a Unix socket.

It serves a model of the Qwen3 architecture from a folder in Hugging Face's layout. It does not need torch. One process
serves one model and uses one core.
"""

"""A model server for small models: tokenizers and numpy, behind vLLM's HTTP shapes on a Unix socket.

It serves Qwen3-architecture folders in Hugging Face layout, without torch. One process, one model, one core.
"""

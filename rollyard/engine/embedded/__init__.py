"""A model server for small models: tokenizers and numpy, with vLLM's HTTP API on a Unix socket.

It serves Qwen3-architecture folders in Hugging Face layout, without torch, with one process, one model and one core.
"""

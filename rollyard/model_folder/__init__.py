"""Folders of models in Hugging Face layout: what is in them, read within limits, and which engine can serve it."""

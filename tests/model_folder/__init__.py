"""Folders of models, as others write them."""

"""CustomResourceDefinitions of the kinds, generated from their models, and samples; package data."""

"""Package data: the CustomResourceDefinitions that `generate` makes from the kinds' models, and samples."""

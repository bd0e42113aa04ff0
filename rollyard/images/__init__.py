"""Images of sandboxes on a node: pulled or built once, kept in a cache, and held while a sandbox uses them."""

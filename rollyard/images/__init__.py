"""Images of sandboxes on a node: pulled or built once, kept in a cache, and pinned while a sandbox uses them."""

"""Which weights an engine serves, how they are changed while it runs, and how it proves them."""

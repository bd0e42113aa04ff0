"""The APIs that the gateway serves, one module each; `base` holds their common interface."""

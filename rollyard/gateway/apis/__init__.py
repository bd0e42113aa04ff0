"""The APIs that the gateway speaks, one module each; `base` says what each brings."""

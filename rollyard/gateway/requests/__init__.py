"""The common form of all APIs' requests, and the errors that callers receive."""

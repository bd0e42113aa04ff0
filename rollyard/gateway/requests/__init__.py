"""The common form of all APIs' requests, and the errors with which requests are answered."""

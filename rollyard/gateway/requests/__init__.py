"""Requests as all APIs come down to them, and the errors that answer them."""

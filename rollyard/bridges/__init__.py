"""Bridges: processes that speak another framework's protocol, and run what it asks for as rollouts.

A bridge is a client of the server's API and holds no result. The id of a rollout is derived from the request of the
framework, so a request that is sent again, to this bridge or to a new one, attaches to the same rollout.
`verl_tool` is not a client: its framework samples itself, and asks for sandboxes only.
"""

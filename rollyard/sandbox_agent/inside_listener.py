"""A way in for the owner: a socket that listens inside the sandbox, on its own loopback, and is accepted on outside.

A sandbox has its own network without any other host. Its listening socket is passed out through a Unix socket. So the
owner can answer requests of programs in here to 127.0.0.1, and they can reach nothing else.
"""

from __future__ import annotations

import socket

BACKLOG = 1024


def receive_gate(stdin: socket.socket) -> socket.socket:
    """Receive the Unix socket for passing sockets, which the owner sends with its first byte."""
    _, fds, _, _ = socket.recv_fds(stdin, 1, 1)
    if not fds:
        raise EOFError("the owner was gone before it began")
    gate = socket.socket(fileno=fds[0])
    gate.set_inheritable(False)
    return gate


def listen(gate: socket.socket) -> int:
    """Listen on a free port of 127.0.0.1 and pass the socket to the owner; return the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        socket.send_fds(gate, [b"L"], [listener.fileno()])
        port: int = listener.getsockname()[1]
        return port

"""A socket that listens on the sandbox's own loopback. The sandbox's owner (the node agent, which runs outside of the
sandbox) accepts the connections.

A sandbox has its own network without any other host. The listening socket is passed to the owner through a Unix socket.
So programs in the sandbox reach the owner at 127.0.0.1, and reach nothing else.
"""

from __future__ import annotations

import socket

BACKLOG = 1024


def receive_gate(stdin: socket.socket) -> socket.socket:
    """Receive the gate: the Unix socket through which listening sockets are passed to the owner. The owner sends the
    gate together with the first byte on standard input."""
    _, fds, _, _ = socket.recv_fds(stdin, 1, 1)
    if not fds:
        raise EOFError("the owner was gone before it began")
    gate = socket.socket(fileno=fds[0])
    gate.set_inheritable(False)
    return gate


def listen(gate: socket.socket, port: int) -> int:
    """Listen on a port of 127.0.0.1, pass the socket to the owner, and return the port. `port` 0: any free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        socket.send_fds(gate, [b"L"], [listener.fileno()])
        bound: int = listener.getsockname()[1]
        return bound

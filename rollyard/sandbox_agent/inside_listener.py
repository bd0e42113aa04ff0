"""A socket that listens on the sandbox's own loopback. The sandbox's owner (the node agent, which runs outside of the
sandbox) accepts the connections.

A sandbox has its own network without any other host. The listening socket is passed to the owner through a Unix socket.
So programs in the sandbox reach the owner at 127.0.0.1, and reach nothing else. In the other direction the owner passes
pipes, for long data.
"""

from __future__ import annotations

import os
import struct
from _socket import AF_INET, CMSG_LEN, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

BACKLOG = 1024
_NUMBER = struct.Struct("!I")
"""Form of a message on the gate from the owner. A pipe comes with it."""
TICKET = struct.Struct("!Q")
"""Form of a message on the gate: the number of a call of the owner. The descriptors come with it."""


def receive_gate(stdin: socket) -> socket:
    """Receive the gate: the Unix socket through which listening sockets are passed to the owner. The owner sends the
    gate together with the first byte on standard input."""
    return socket(fileno=_receive_fd(stdin, 1)[1])


def receive_pipe(gate: socket, number: int) -> int:
    """Receive the pipe that the owner has sent with this number. Pipes of cancelled calls are closed."""
    while True:
        data, fd = _receive_fd(gate, _NUMBER.size)
        if data == _NUMBER.pack(number):
            return fd
        os.close(fd)


def _receive_fd(sock: socket, count: int) -> tuple[bytes, int]:
    room = struct.calcsize("i")
    data, ancillary, _, _ = sock.recvmsg(count, CMSG_LEN(room))
    if not ancillary:
        raise EOFError("the owner was gone before it began")
    (fd,) = struct.unpack("i", ancillary[0][2][:room])
    os.set_inheritable(fd, False)
    return data, fd


def pass_descriptors(gate: socket, ticket: int, fds: list[int]) -> None:
    """Pass open files to the owner. `ticket`: the owner's number of the call that gets them."""
    ancillary = [(SOL_SOCKET, SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))]
    gate.sendmsg([TICKET.pack(ticket)], ancillary)


def listen(gate: socket, ticket: int, port: int) -> int:
    """Listen on a port of 127.0.0.1, pass the socket to the owner, and return the port. `port` 0: any free port."""
    listener = socket(AF_INET, SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        pass_descriptors(gate, ticket, [listener.fileno()])
        bound: int = listener.getsockname()[1]
        return bound
    finally:
        listener.close()

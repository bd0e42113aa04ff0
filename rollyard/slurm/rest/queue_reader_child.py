"""Child process that parses large queues.

A request is two messages: first the codec with our user's name, then the body. The answer is a `QueueAnswer` or an error.
"""

from __future__ import annotations

import contextlib
import pickle
import sys

from rollyard.slurm.rest.codec import parse_json
from rollyard.slurm.rest.queue_reader import FAULTS, LENGTH_BYTES


def main() -> None:
    while (pickled := receive()) is not None and (raw := receive()) is not None:
        codec, user = pickle.loads(pickled)
        try:
            found = codec.queue(parse_json(raw), user)
        except FAULTS as error:
            found = error
        message = pickle.dumps(found)
        sys.stdout.buffer.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
        sys.stdout.buffer.flush()


def receive() -> bytes | None:
    """Read one message; return None if the input ends first."""
    length = sys.stdin.buffer.read(LENGTH_BYTES)
    message = sys.stdin.buffer.read(int.from_bytes(length, "big"))
    return message if len(length) == LENGTH_BYTES and len(message) == int.from_bytes(length, "big") else None


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the server has ended
        main()

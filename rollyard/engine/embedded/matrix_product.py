"""Matrix products in which the result for one row does not depend on the other rows, bit for bit.

BLAS chooses its inner loops by the shape of a product, and different loops add in different orders. With OpenBLAS's
Haswell kernels, a row's result in a product of twelve rows has other last bits than in a product of eight rows. So rows
are multiplied in blocks of a few fixed heights. For each shape of matrix, `block_heights` tests on this machine whether
a row's position in a block, or the height of the block, changes the row's result. A height that changes the result is
not used. If the position changes the result, each row is multiplied separately.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rollyard.engine.embedded.safetensors_files import Array

TALLEST = 8
LOWER = (2, 4)
"""Block heights below `TALLEST`, for products of few rows. Height 1 is missing, because BLAS multiplies a single row as
a vector, and then adds in another order."""


def product(x: Array, matrix: Array) -> Array:
    """Return x [rows, inputs] @ matrix [inputs, outputs]. Both arguments must be C-contiguous."""
    heights = block_heights(*matrix.shape)
    height = next((h for h in heights if h >= len(x)), heights[-1])
    blocks = x
    if missing := -len(x) % height:
        blocks = np.concatenate([x, np.zeros((missing, x.shape[1]), x.dtype)])
    blocks = blocks.reshape(-1, height, x.shape[1])
    done: Array = np.matmul(blocks, matrix).reshape(-1, matrix.shape[1])
    return done[: len(x)]


@cache
def block_heights(inputs: int, outputs: int) -> tuple[int, ...]:
    """Return the usable block heights, ascending. A row gets the same bits with all of them and at every position.
    Return (1,) if the bits depend on the position.

    BLAS chooses its loops by the shapes and not by the numbers, so random numbers are enough for the test.
    """
    numbers = np.random.default_rng(0)
    rows = numbers.standard_normal((TALLEST, inputs), np.float32)
    matrix = numbers.standard_normal((inputs, outputs), np.float32)
    expected = np.matmul(rows, matrix)
    for turn in range(1, TALLEST):
        if not np.array_equal(np.matmul(np.roll(rows, turn, axis=0), matrix), np.roll(expected, turn, axis=0)):
            return (1,)
    lower = [
        h
        for h in LOWER
        if np.array_equal(np.matmul(rows.reshape(-1, h, inputs), matrix).reshape(-1, outputs), expected)
    ]
    return (*lower, TALLEST)

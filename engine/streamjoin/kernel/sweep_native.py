"""The machine code of ``kernel.sweep``. Importing this imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernel.ranges import LOOK, LOOK_ON, ONE, STEP, ZERO
from streamjoin.kernel.sweep import STRETCHES
from streamjoin.native.functions import native, read, write
from streamjoin.native.numba_names import addresses, ir, types

THREE, FOUR = np.uint64(3), np.uint64(STRETCHES)
TOLD = LOOK + LOOK_ON
"""From so many rows before the end of a run on, it is looked at row by row."""


def _counted(comparison: str, lanes: int, keys: Any, place: Any, key: Any) -> Any:
    """How many of the next so many keys compare so with one: a vector's comparison makes bits, which are counted."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of, at, value = arguments
        array = context.make_array(signature.args[0])(context, builder, of)
        vector = ir.VectorType(value.type, lanes)
        first = builder.bitcast(builder.gep(array.data, [at]), vector.as_pointer())
        found = builder.load(first, align=8)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        same = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))
        compare = builder.fcmp_ordered if isinstance(value.type, ir.DoubleType) else builder.icmp_signed
        bits = builder.bitcast(compare(comparison, found, same), ir.IntType(lanes))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.uint64(keys, place, key), code


@addresses
def count_below(context: Any, keys: Any, place: Any, key: Any) -> Any:
    """Of the eight from a place on, which must be there."""
    return _counted("<", int(LOOK), keys, place, key)


@addresses
def count_up_to(context: Any, keys: Any, place: Any, key: Any) -> Any:
    """Of the four from a place on, which must be there."""
    return _counted("<=", int(LOOK_ON), keys, place, key)


_REST = (write("int64"), "int64", "int64", write("int32"), write("int32"))


@native(
    (read("int64"), "int64", read("int64"), "int64", read("int64"), *_REST),
    (read("float64"), "float64", read("float64"), "float64", read("float64"), *_REST),
)
def sweep(
    lows: Any, below: Any, highs: Any, above: Any, run: Any, state: Any, offset: int, filled: int, probe_rows: Any, run_rows: Any
) -> int:
    """Writes the pairs of a probing row and a row of ``run`` inside its interval [low + below, high + above], whose ends ascend, from
    ``state`` on, until the chunk is full. Returns how many pairs the chunk then has, of which ``filled`` were there before.

    ``state``: how many rows of each stretch are done; of the next rows, with which stretch and which match to go on; and by stretch, the
    place in the run that it has come to. The first probing row is row ``offset`` of its own run. O(probes + rows / 16 + pairs).
    """
    rows, probes, capacity, count = np.uint64(len(run)), np.uint64(len(lows)), np.uint64(len(run_rows)), np.uint64(filled)
    length = (probes + FOUR - ONE) // FOUR
    second, third, fourth = length, length + length, length + length + length
    done, stretch, match = np.uint64(state[0]), np.uint64(state[1]), np.uint64(state[2])

    def place(j: Any, low: Any) -> Any:
        """The first row not below, or one not far from the end."""
        while j + STEP + LOOK_ON <= rows and run[j + STEP - ONE] < low:
            j += STEP
        found = LOOK
        while found == LOOK and j + TOLD <= rows:
            found = count_below(run, j, low)
            j += found
        return j

    def written(to: Any, row: Any, j: Any, high: Any) -> Any:
        """Writes what may match, and counts those that do."""
        for k in range(LOOK_ON):
            probe_rows[to + k] = offset + row
            run_rows[to + k] = j + k
        return count_up_to(run, j, high)

    while done < length:
        a, b, c, d = np.uint64(state[3]), np.uint64(state[4]), np.uint64(state[5]), np.uint64(state[6])
        while fourth + done < probes and d + TOLD <= rows and count + FOUR * LOOK_ON <= capacity and not stretch and not match:
            a, b = place(a, lows[done] + below), place(b, lows[second + done] + below)
            c, d = place(c, lows[third + done] + below), place(d, lows[fourth + done] + below)
            if d + TOLD > rows:
                break
            of_a = written(count, done, a, highs[done] + above)
            of_b = written(count + of_a, second + done, b, highs[second + done] + above)
            of_c = written(count + of_a + of_b, third + done, c, highs[third + done] + above)
            of_d = written(count + of_a + of_b + of_c, fourth + done, d, highs[fourth + done] + above)
            if max(of_a, of_b, of_c, of_d) == LOOK_ON:
                break  # there may be more
            count += of_a + of_b + of_c + of_d
            done += ONE
        state[3], state[4], state[5], state[6] = a, b, c, d
        if done == length:
            break
        while stretch < FOUR:
            row = stretch * length + done
            if row < probes:
                low, high, j = lows[row] + below, highs[row] + above, np.uint64(state[THREE + stretch])
                while j + STEP <= rows and run[j + STEP - ONE] < low:
                    j += STEP
                while j < rows and run[j] < low:
                    j += ONE
                state[THREE + stretch] = j
                match = max(match, j)
                while match < rows and run[match] <= high:
                    if count == capacity:
                        state[0], state[1], state[2] = done, stretch, match
                        return int(count)
                    probe_rows[count] = offset + row
                    run_rows[count] = match
                    count += ONE
                    match += ONE
            stretch += ONE
            match = ZERO
        stretch = ZERO
        done += ONE
    state[0], state[1], state[2] = done, ZERO, ZERO
    return int(count)

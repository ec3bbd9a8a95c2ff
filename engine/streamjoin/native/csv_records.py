"""Where the records of CSV end, when values in quotes may have line breaks. Machine code, loaded when a block has a quote."""

from __future__ import annotations

import numpy as np

from streamjoin.native.functions import native, read, write

NEWLINE = np.uint8(10)
CARRIAGE_RETURN = np.uint8(13)
QUOTE = np.uint8(34)


@native((read("uint8"), "int64", "int64", "int64", "int64", write("int64"), write("int64")))
def find_ends(data: np.ndarray, start: int, delimiter: int, limit: int, is_last: int, ends: np.ndarray, found: np.ndarray) -> None:
    """The newlines that end the records from ``start`` on, where one begins. O(bytes).

    A quote opens a value only where the value begins; two in it are one. A value that is not closed within ``limit`` bytes of its record's
    start (or in ``data``, if it ``is_last``) is *broken*: its record ends with the first line, and the next one begins there.

    ``ends`` has room for all newlines. ``found``: how many records end, how many of them are broken or have a carriage return that is
    neither quoted nor before a newline, and whether ``data`` ends within quotes.
    """
    n = len(data)
    at = start
    count = 0
    bad = 0
    is_open = 0
    while at < n:
        byte = data[at]
        if byte == NEWLINE:
            ends[count] = at
            count += 1
            at += 1
            start = at
        elif byte == CARRIAGE_RETURN:
            at += 1
            if at < n and data[at] != NEWLINE:
                bad += 1
        elif byte == QUOTE and (at == start or data[at - 1] == delimiter):
            stop = min(n, start + limit)
            at += 1
            while at < stop:
                if data[at] != QUOTE:
                    at += 1
                elif at + 1 < n and data[at + 1] == QUOTE:
                    at += 2
                else:
                    break
            if at < stop:
                at += 1
                continue
            if n < start + limit and not is_last:
                is_open = 1
                break
            line_end = start
            while line_end < n and data[line_end] != NEWLINE:
                line_end += 1
            if line_end == n and not is_last:
                break
            bad += 1
            if line_end < n:
                ends[count] = line_end
                count += 1
            at = start = line_end + 1
        else:
            at += 1
    found[0] = count
    found[1] = bad
    found[2] = is_open

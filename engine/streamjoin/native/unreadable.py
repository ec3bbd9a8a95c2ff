"""The reasons why a binary record (Avro, Protobuf) cannot be read: the numbers that native functions return, and the words for them."""

from __future__ import annotations

OK, ENDS, TOO_LONG, TOO_DEEP, LEFT_OVER, NO_BRANCH, NO_SYMBOL, NEGATIVE, TOO_MANY, NO_BOOLEAN, BAD_TAG = range(11)

REASONS = {
    ENDS: "ends before the schema does",
    TOO_LONG: "has a number of more than 64 bits",
    TOO_DEEP: "is too deeply nested",
    LEFT_OVER: "has bytes that the schema does not explain",
    NO_BRANCH: "has a number of no branch of a union",
    NO_SYMBOL: "has a number of no symbol of an enum",
    NEGATIVE: "has a length below 0",
    TOO_MANY: "has arrays of too many items that take no bytes",
    NO_BOOLEAN: "has a boolean that is neither 0 nor 1",
    BAD_TAG: "is not a message of Protobuf",
}
"""What follows "the record"."""

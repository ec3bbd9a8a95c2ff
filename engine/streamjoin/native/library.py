"""Native functions from a library that was compiled beforehand (``native.build``), without Numba and LLVM: as in our images.

A library serves an installation, in ``share/streamjoin/kernels`` of its prefix: a file of machine code for each level of processor, and
``functions.json``, which says what is in them. A function is called through ``ctypes``, which releases Python's lock meanwhile: its
arguments are 64-bit words in one array, of an array its address and its length; what it returns is put in the same place.

Always holds: a function of the library is of the source that is here, for both have the same digest, and takes exactly the types that it
declares; otherwise there is none, and Numba compiles it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DIRECTORY = Path("share", "streamjoin", "kernels")
"""Below an installation's prefix."""
DESCRIPTION = "functions.json"
PACKAGE = __package__
LEVELS = {"x86_64": ("x86-64-v3", "x86-64"), "aarch64": ("aarch64",)}
"""By machine, for which processors there is a file, the best first."""
NEEDED = {"x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}}
"""What a processor must say that it can (``/proc/cpuinfo``)."""


class Array(NamedTuple):
    """The type of a contiguous one-dimensional array argument."""

    dtype: str
    writable: bool


Argument = Array | str
"""An array, or the name of a scalar's type."""


def found(module: str, name: str, signatures: Sequence[Sequence[Argument]]) -> Callable[..., Any] | None:
    """The function of a module with these signatures. None: no library has it as it is here."""
    library = _library()
    described = library.functions.get(f"{module}.{name}") if library is not None else None
    if library is None or described is None or not _is_of_source(library.sources, module):
        return None
    calls = {}
    for signature, each in zip(signatures, described, strict=True):
        calls[tuple(_dtype(argument) for argument in signature if not isinstance(argument, str))] = _call(
            library.code[each["symbol"]], name, signature, each["returns"]
        )
    return next(iter(calls.values())) if len(calls) == 1 else _choice(name, calls)


def digest(source: Path) -> str:
    """What tells whether a file is the one that was compiled."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


@functools.cache
def package_digest() -> str:
    """The same of the files of this package, whose functions call parts in others of them."""
    files = sorted(file for file in Path(__file__).parent.iterdir() if file.suffix in (".py", ".pyc"))
    return hashlib.sha256("".join(map(digest, files)).encode()).hexdigest()


def level(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The levels that this processor has, the best first. Empty for a machine that nothing is compiled for."""
    levels = LEVELS.get(machine or platform.machine(), ())
    flags: set[str] = set()
    if any(each in NEEDED for each in levels):
        try:
            with cpuinfo.open() as lines:
                flags = set(next((line for line in lines if line.startswith("flags")), "").split())
        except OSError:  # then the least
            flags = set()
    return [each for each in levels if NEEDED.get(each, set()) <= flags]


@dataclass(frozen=True, slots=True)
class _Library:
    code: Any
    """ctypes.CDLL"""
    sources: dict[str, str]
    """By module, the digest of the file that it was compiled from, and by PACKAGE that of all files here."""
    functions: dict[str, list[dict[str, Any]]]


@functools.cache
def _library() -> _Library | None:
    directory = Path(sys.prefix, DIRECTORY)
    try:
        description = json.loads((directory / DESCRIPTION).read_text())
    except (OSError, ValueError):
        return None
    for name in level():
        try:
            return _Library(ctypes.CDLL(str(directory / f"{name}.so")), description["sources"], description["functions"])
        except OSError:  # not there, or of another system
            continue
    return None


@functools.cache
def _is_current(module: str, expected: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and digest(Path(file)) == expected


def _is_of_source(sources: dict[str, str], module: str) -> bool:
    is_here = module.startswith(f"{PACKAGE}.")
    return sources[PACKAGE] == package_digest() and (is_here or _is_current(module, sources[module]))


def _call(function: Any, name: str, signature: Sequence[Argument], returns: Sequence[str]) -> Callable[..., Any]:
    """From Python's arguments to words, and back. Some microseconds; Arrow is asked for addresses, as NumPy takes eight times as
    long."""
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int32
    kinds = [each if isinstance(each, str) else (_dtype(each), each.writable) for each in signature]
    given_as = struct.Struct("@" + "".join(_FORMATS[each] if isinstance(each, str) else "Qq" for each in signature))
    returned_as = struct.Struct("@" + "".join(_FORMATS[each] for each in returns))
    block_type = ctypes.c_char * (given_as.size + returned_as.size)

    def call(*given: Any) -> Any:
        words: list[Any] = []
        for value, kind in zip(given, kinds, strict=True):
            if isinstance(kind, str):
                words.append(value)
                continue
            flags = value.flags
            if value.dtype != kind[0] or value.ndim != 1 or not flags.c_contiguous or (kind[1] and not flags.writeable):
                wanted = f"a contiguous array of {kind[0]}{' to write to' if kind[1] else ''}"
                raise TypeError(f"{name}: takes {wanted}, not {_kind(value)}")
            words += (pa.py_buffer(value).address, len(value))
        block = block_type()
        given_as.pack_into(block, 0, *words)
        if function(block):
            raise RuntimeError(f"{name}: has failed")
        if not returns:
            return None
        results = returned_as.unpack_from(block, given_as.size)
        return results if len(results) > 1 else results[0]

    return call


def _choice(name: str, calls: dict[tuple[Any, ...], Callable[..., Any]]) -> Callable[..., Any]:
    """Of functions that differ in the types of their arrays."""

    def call(*given: Any) -> Any:
        types = tuple([value.dtype for value in given if isinstance(value, np.ndarray)])
        chosen = calls.get(types)
        if chosen is None:
            raise TypeError(f"{name}: takes arrays of {' or '.join(map(_listed, calls))}, not of {_listed(types)}")
        return chosen(*given)

    return call


def _dtype(argument: Array) -> np.dtype[Any]:
    return np.dtype(_NAMES.get(argument.dtype, argument.dtype))


def _listed(types: tuple[Any, ...]) -> str:
    return ", ".join(map(str, types))


def _kind(value: Any) -> str:
    return f"one of {value.ndim} dimensions of {value.dtype}{'' if value.flags.writeable else ', read-only'}"


_NAMES = {"boolean": "bool"}
"""NumPy's, where Numba's differ."""
_FORMATS = {"int64": "q", "uint64": "Q", "float64": "d", "bool": "?7x"}
"""Of words, as ``struct`` has them. Machines here begin with the lowest byte."""

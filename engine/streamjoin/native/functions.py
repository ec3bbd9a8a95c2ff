"""Functions compiled to machine code by Numba: once per machine, cached on disk, safe when many processes start at once.

Always holds: a :func:`native` function has exactly the signatures it declares, so no call in the middle of a join starts the
compiler; the arrays that it only reads may be read-only, as memory-mapped ones are. Numba is imported when the first function is
compiled or loaded, by :func:`compile_all` or by a call: a process that only plans never pays for it.

The cache goes where Numba puts it: ``NUMBA_CACHE_DIR`` when set, else ``__pycache__`` beside the source, else (read-only package)
the user's cache directory, else (no writable home, as in a container with an arbitrary user) a directory of that user's own under
the system's temporary one. Entries are keyed by source, signature, Numba's version and CPU: another machine's are not misused.

An installation may bring machine code along (``native.library``), as our image does, which has no Numba: then nothing of this happens.

Numba picks the names of cache files without a lock: of two processes that compile at the same time, one can store its code under
the name that the other's index gives to another signature or CPU. Hence a file lock around compilation; who had to wait then loads.
It also notices changes only of the file that a function is in, and functions of this package call parts in others of its files. Hence the
cache of this package is emptied when any of them has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from streamjoin.native import library

F = TypeVar("F", bound=Callable[..., Any])


def read(dtype: str) -> library.Array:
    """An array that the function only reads; the caller's may be writable."""
    return library.Array(dtype, writable=False)


def write(dtype: str) -> library.Array:
    """An array that the function writes to."""
    return library.Array(dtype, writable=True)


Signature = tuple[library.Argument, ...]


class _Native:
    """A function, and its machine code once it is needed."""

    def __init__(self, function: Callable[..., Any], signatures: tuple[Signature, ...]) -> None:
        self.__doc__ = function.__doc__
        self.source, self._signatures = function, signatures
        self._dispatcher: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.compile())(*arguments)

    @property
    def module(self) -> str:
        """Where it is, and under which ``name``."""
        return self.source.__module__

    @property
    def name(self) -> str:
        return self.source.__qualname__

    def numba_types(self) -> list[tuple[Any, ...]]:
        """By signature, the types of its arguments."""
        return [tuple(_numba_type(argument) for argument in signature) for signature in self._signatures]

    def compile(self) -> Callable[..., Any]:
        if self._dispatcher is None:
            self._dispatcher = library.found(self.module, self.name, self._signatures)
        if self._dispatcher is None and _numba().config.DISABLE_JIT:  # somebody debugs it
            self._dispatcher = self.source
        if self._dispatcher is None:
            dispatcher = _dispatcher(self.source)
            cache = Path(dispatcher.stats.cache_path)
            with _compiling(cache):
                if self.module.startswith(f"{library.PACKAGE}."):
                    _forget_others(cache)
                for types in self.numba_types():
                    dispatcher.compile(types)
            dispatcher.disable_compile()
            self._dispatcher = cast(Callable[..., Any], dispatcher)
        return self._dispatcher


_functions: list[_Native] = []


def native(*signatures: Signature) -> Callable[[F], F]:
    """Declares a function to be compiled for exactly these types of arguments."""

    def declare(function: F) -> F:
        _functions.append(_Native(function, signatures))
        return cast(F, _functions[-1])

    return declare


def compile_all() -> None:
    """Compiles, or loads from the cache, every native function of the modules imported so far."""
    for function in _functions:
        function.compile()


def functions() -> list[_Native]:
    """Every native function of the modules imported so far."""
    return list(_functions)


@functools.cache
def _numba() -> Any:
    """Numba without its question whether there is a BLAS, which nothing here calls: it would load ``scipy.linalg``, in every worker."""
    import numba

    with contextlib.suppress(ImportError, AttributeError):  # of another version of Numba
        from numba.np import linalg

        asks = linalg.ensure_blas
        linalg.ensure_blas = _no_blas
        try:
            importlib.import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = asks
    return numba


def _no_blas() -> None:
    raise ImportError


def _dispatcher(function: Callable[..., Any]) -> Any:
    numba = _numba()
    decorate = numba.njit(cache=True, nogil=True, error_model="numpy")
    try:
        return decorate(function)
    except RuntimeError:  # Numba found no place where it may write a cache
        numba.config.CACHE_DIR = str(_private_directory())
        return decorate(function)


def _numba_type(argument: library.Argument) -> Any:
    from numba import types

    if isinstance(argument, library.Array):
        return types.Array(getattr(types, argument.dtype), 1, "C", readonly=not argument.writable)
    return getattr(types, argument)


@contextlib.contextmanager
def _compiling(directory: Path) -> Iterator[None]:
    """One process at a time compiles into a cache directory. The lock goes when its process does, however it ends."""
    try:
        descriptor = os.open(directory / "native.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # another user's lock, or a directory that has become read-only: compile without a word to the others
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _forget_others(cache: Path) -> None:
    """Takes the index of each function away that was compiled from other sources than those that are here."""
    stamp = cache / "native.sources"
    with contextlib.suppress(OSError):  # a cache that this user may only read is another one's to keep
        if not stamp.exists() or stamp.read_text() != library.package_digest():
            for index in cache.glob("*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(library.package_digest())


def _private_directory() -> Path:
    """A directory of this user alone under the temporary one: machine code that anyone else put there must never be loaded."""
    directory = Path(tempfile.gettempdir()) / f"streamjoin-native-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return directory
    return Path(tempfile.mkdtemp(prefix="streamjoin-native-"))

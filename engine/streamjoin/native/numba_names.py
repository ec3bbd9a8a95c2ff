"""What native functions are written with of Numba and LLVM. Where neither is installed, as in our images, placeholders: nothing is compiled
there, and the machine code is a library's (``native.library``). Importing this imports Numba, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

__all__ = ["addresses", "cgutils", "ir", "part", "types"]

F = TypeVar("F", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _as_it_is(function: F) -> F:
    return function


try:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import cgutils, types
    from numba.extending import intrinsic, register_jitable
except ModuleNotFoundError:
    ir = cgutils = types = None  # type: ignore[assignment]
    intrinsic = register_jitable = _as_it_is

addresses = cast(Decorator, intrinsic)
"""Decorates what generates the code of a function of addresses: numba.extending.intrinsic, with a type."""
part = cast(Decorator, register_jitable)
"""Decorates a function that native functions of the same package call."""

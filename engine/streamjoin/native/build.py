"""Compiles all native functions into a library that ``native.library`` serves them from, for any processor, by Numba and a linker:

    python -m streamjoin.native.build DIRECTORY MACHINE LINKER

as ``share/streamjoin/kernels x86_64 x86_64-linux-gnu-ld``. Numba and LLVM, which take more room in an image than any other part, and time
and memory of each worker, are then not needed any more.

Numba makes LLVM's code for this machine, from which LLVM makes that of another: functions here work on words of 64 bits and on bytes, in
memory that the caller has allocated; they call nothing but C's memory functions, and raise nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from streamjoin.native import functions, library

TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
PROCESSORS = {"x86-64-v3": "x86-64-v3", "x86-64": "x86-64", "aarch64": "generic"}
ALLOWED = {"memcpy", "memmove", "memset", "bcmp", "memcmp"}
"""What libraries may ask of the process that loads them: C's own functions."""


class MachineCodeError(RuntimeError):
    """Why there is no library; the text is for people."""


def import_all() -> None:
    """The modules with native functions: those of the kernel, which is above this package, and the parsers here."""
    for package in map(importlib.import_module, ("streamjoin.kernel", library.PACKAGE)):
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(each.name)


def make(directory: Path, machine: str, linker: str) -> None:
    """Writes a library for each level of the machine's processors. Raises MachineCodeError."""
    if machine not in library.LEVELS:
        raise MachineCodeError(f"{machine}: is no machine that libraries are made for; take {' or '.join(library.LEVELS)}")
    directory.mkdir(parents=True, exist_ok=True)
    for level in library.LEVELS[machine]:
        # Numba chooses a processor once in a process.
        environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
        command = [sys.executable, "-m", __spec__.name, "--level", str(directory), machine, linker, level]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MachineCodeError(f"{level}: {done.stderr.strip()[-2000:]}")


def make_level(directory: Path, machine: str, linker: str, level: str) -> None:
    """Writes one of the libraries, and the description, which is the same for all of them. Raises MachineCodeError."""
    import_all()
    # Of this machine's own kind, loops become vectors of the width that the level has.
    module, described = _module(PROCESSORS[level] if machine == platform.machine() else "generic")
    with tempfile.TemporaryDirectory() as temporary:
        compiled = Path(temporary, "kernels.o")
        compiled.write_bytes(_compiled(module, TRIPLES[machine], PROCESSORS[level]))
        target = directory / f"{level}.so"
        # LLVM's names for the sections are no reason to keep symbols that nobody looks up.
        command = [linker, "-shared", "-z", "now", "-z", "noexecstack", "--build-id=none", "-s", "-o", str(target), str(compiled)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MachineCodeError(f"{linker}: {done.stderr.strip()}")
    outside = {each.module for each in functions.functions() if not each.module.startswith(f"{library.PACKAGE}.")}
    sources = {name: library.digest(Path(str(sys.modules[name].__file__))) for name in sorted(outside)}
    sources[library.PACKAGE] = library.package_digest()
    (directory / library.DESCRIPTION).write_text(json.dumps({"sources": sources, "functions": described}, indent=1))


def _module(processor: str) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """All functions as LLVM's code, optimised, and by name how each is called."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    typing = cpu_target.typing_context
    context = cpu_target.target_context.with_aot_codegen("kernels", cpu_name=processor)
    code = context.codegen().create_library("kernels")
    described: dict[str, list[dict[str, Any]]] = {}
    with global_compiler_lock:
        for function in functions.functions():
            for number, arguments in enumerate(function.numba_types()):
                symbol = f"{function.module}.{function.name}.{number}".replace(".", "_")
                returns = _add(typing, context, code, function.source, arguments, symbol)
                described.setdefault(f"{function.module}.{function.name}", []).append({"symbol": symbol, "returns": returns})
        code.finalize()
    return str(code._final_module), described


def _add(typing: Any, context: Any, code: Any, function: Any, arguments: tuple[Any, ...], symbol: str) -> list[str]:
    """A function, and one of that name that calls it with the words at an address. Returns the types of what it returns."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.core import cgutils
    from numba.core.compiler import Flags, compile_extra
    from numba.np.arrayobj import make_array, populate_array

    flags = Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    made = compile_extra(typing, context, function, arguments, None, flags, locals={}, library=code)
    described = made.fndesc
    word = ir.IntType(64)
    module = context.create_module(f"{symbol}_words")
    callee = ir.Function(module, context.call_conv.get_function_type(described.restype, described.argtypes), described.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [word.as_pointer()]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    taken = 0

    def at(place: int) -> Any:
        return builder.gep(entry.args[0], [ir.Constant(word, place)])

    values = []
    for kind in arguments:
        given = builder.load(at(taken))
        if isinstance(kind, types.Array):
            array = make_array(kind)(context, builder)
            item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            count, size = builder.load(at(taken + 1)), ir.Constant(word, item)
            populate_array(
                array,
                data=builder.inttoptr(given, context.get_data_type(kind.dtype).as_pointer()),
                shape=[count],
                strides=[size],
                itemsize=size,
                meminfo=None,
                parent=None,
            )
            values.append(array._getvalue())
            taken += 2
        else:
            values.append(builder.bitcast(given, ir.DoubleType()) if kind == types.float64 else given)
            taken += 1
    status, out = context.call_conv.call_function(builder, callee, described.restype, described.argtypes, values)
    kinds = [] if described.restype == types.none else list(getattr(described.restype, "types", [described.restype]))
    results = [out] if len(kinds) == 1 else cgutils.unpack_tuple(builder, out) if kinds else []
    for place, (kind, result) in enumerate(zip(kinds, results, strict=True)):
        if kind not in (types.int64, types.uint64, types.boolean):
            raise MachineCodeError(f"{symbol}: returns {kind}; native.library has no way to give that")
        builder.store(builder.zext(result, word) if kind == types.boolean else result, at(taken + place))
    builder.ret(builder.zext(status.is_error, ir.IntType(32)))
    code.add_ir_module(module)
    return [str(kind) for kind in kinds]


def _compiled(text: str, triple: str, processor: str) -> bytes:
    """An object file for another processor. Raises MachineCodeError."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=processor, opt=3, reloc="pic", codemodel="default")
    lines = [line for line in text.splitlines() if not line.startswith(("target datalayout", "target triple"))]
    module = llvm.parse_assembly("\n".join(lines))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    foreign = {each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")} - ALLOWED
    if foreign:
        raise MachineCodeError(f"{', '.join(sorted(foreign))}: is called by a native function, and no library has it")
    return bytes(machine.emit_object(module))


def main() -> int:
    """Exit code 1 and why where a library cannot be made."""
    try:
        if sys.argv[1] == "--level":
            make_level(Path(sys.argv[2]), *sys.argv[3:])
        else:
            make(Path(sys.argv[1]), *sys.argv[2:])
    except (MachineCodeError, OSError) as error:
        print(f"machine code: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

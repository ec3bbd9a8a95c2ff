"""``streamjoin serve``: queries over HTTP, apart from the driver. It keeps no state: any number may run, and each needs the storage
alone."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click

from streamjoin.cli.exits import Exit, Failure


@dataclass(frozen=True)
class Options:
    """The command's options."""

    manifest: Path
    port: int
    address: str
    token_file: Path | None
    processes: int
    memory_bytes: int


def run_server(options: Options) -> int:
    """Answer until Ctrl-C or SIGTERM. Returns the exit code."""
    try:
        _serve(options)
    except Failure as failure:
        click.echo(f"streamjoin: {failure.sentence}" if failure.code is not Exit.USAGE else failure.sentence, err=True)
        return failure.code
    return Exit.DONE


def _serve(options: Options) -> None:
    from streamjoin.cli.run import anchored
    from streamjoin.cli.validate import read_text, refusing
    from streamjoin.job import compile_job
    from streamjoin.manifest.validate import load
    from streamjoin.query.catalog import Catalog
    from streamjoin.query.pool import Pool
    from streamjoin.serve.queries import QueryApi
    from streamjoin.serve.server import DriverServer
    from streamjoin.serve.token import TokenError, TokenFile

    with refusing(options.manifest):
        job = anchored(compile_job(load(read_text(str(options.manifest)))))
    try:
        token = None if options.token_file is None else TokenFile(options.token_file)
    except TokenError as error:
        raise Failure(Exit.USAGE, f"--api-token-file: {error}") from error
    pool = Pool(Catalog.of(job), processes=options.processes, memory_bytes=options.memory_bytes)
    try:
        api = QueryApi(pool, token)
        server = DriverServer(None, options.address, options.port, api=api)
    except OSError as error:
        where = f"port {options.port} of {options.address}"
        remedy = "choose another port, 0 for any free one, or another --address"
        raise Failure(Exit.USAGE, f"--port: {where} cannot be listened on ({error.strerror}); {remedy}") from error
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server:
            click.echo(f"queries: {server.url}/v1/query", err=True)
            stop.wait()
            api.followers.finish(is_over=False)
    finally:
        pool.close()
        for number, handler in before.items():
            signal.signal(number, handler)

"""``streamjoin serve``: queries over HTTP, apart from the driver. It keeps no state: any number may run, and each needs the storage
alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamjoin.cli.exits import Exit, Failure, ending
from streamjoin.cli.poller import Poller
from streamjoin.cli.signals import on_signals

if TYPE_CHECKING:
    from streamjoin.bearer import Token
    from streamjoin.query.catalog import Catalog
    from streamjoin.serve.queries import QueryApi


REREAD_SECONDS = 2.0
"""The time between two looks whether the manifest has changed."""


@dataclass(frozen=True)
class Options:
    """The command's options."""

    manifest: Path
    port: int
    address: str
    token_file: Path | None
    processes: int
    memory_bytes: int
    flight_port: int | None = None
    """The port of Arrow Flight. None: it is not served."""


@ending("streamjoin: ")
def run_server(options: Options) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    from streamjoin.api.join import Join
    from streamjoin.cli.validate import read_text, refusing
    from streamjoin.query.catalog import Catalog
    from streamjoin.query.pool import Pool
    from streamjoin.serve.queries import QueryApi
    from streamjoin.serve.server import DriverServer

    with refusing(options.manifest):
        text = read_text(str(options.manifest))
        job = Join.parse(text).job
    token = token_in(options.token_file)
    pool = Pool(Catalog.of(job), processes=options.processes, memory_bytes=options.memory_bytes)
    api = QueryApi(pool, token)
    try:
        server = DriverServer(None, options.address, options.port, api=api)
    except OSError as error:
        remedy = "choose another port, 0 for any free one, or another --address"
        raise not_listening("--port", options.address, options.port, error, remedy) from error
    stop = threading.Event()
    changes = Changes(options.manifest, text, pool.catalog, api.adopt)
    flight = flight_served(api, options.address, options.flight_port, token)
    with contextlib.closing(pool), on_signals(stop.set), server, flight, changes:
        click.echo(f"queries: {server.url}/v1/query", err=True)
        stop.wait()
        api.followers.finish(is_over=False)


def token_in(file: Path | None) -> Token | None:
    """The token in the file of --api-token-file, if there is one. Raises Failure."""
    from streamjoin.bearer import TokenError, TokenFile

    try:
        return None if file is None else TokenFile(file)
    except TokenError as error:
        raise Failure(Exit.USAGE, f"--api-token-file: {error}") from error


def not_listening(option: str, address: str, port: int, error: OSError, remedy: str) -> Failure:
    return Failure(Exit.USAGE, f"{option}: port {port} of {address} cannot be listened on ({error.strerror}); {remedy}")


class Changes(Poller):
    """Reads the manifest anew as it changes, so that joins that are added can be asked for, and followed, without another start.

    A manifest counts once the join's driver has committed by it: until then what is held, and by which keys, is the former one's.
    """

    def __init__(self, manifest: Path, text: str, catalog: Catalog, adopt: Callable[[Catalog], None]) -> None:
        """``text``: what the catalog was made of."""
        super().__init__("manifest", REREAD_SECONDS)
        self._manifest, self._text, self._catalog, self._adopt = manifest, text, catalog, adopt
        self._told = ""

    def look(self) -> bool:
        """Take the manifest over; whether it was. One that is not valid, or another StreamJoin's, changes nothing."""
        from streamjoin.api.join import Join
        from streamjoin.manifest.problem import ManifestError
        from streamjoin.query.catalog import Catalog

        try:
            text = self._manifest.read_text()
            if text == self._text:
                return False
            catalog = Catalog.of(Join.parse(text).job)
        except (OSError, UnicodeDecodeError, ManifestError) as error:
            return self._not_yet(f"{self._manifest}: has changed, and cannot be used: {str(error).splitlines()[0]}")
        if (catalog.name, catalog.location) != (self._catalog.name, self._catalog.location):
            return self._not_yet(f"{self._manifest}: has another name or checkpoint.location now; start streamjoin serve anew for that")
        if not self._is_committed(catalog):
            return False
        self._text, self._catalog, self._told = text, catalog, ""
        self._adopt(catalog)
        click.echo(f"{self._manifest}: has changed, and counts from now on", err=True)
        return True

    def _is_committed(self, catalog: Catalog) -> bool:
        from streamjoin.query.errors import QueryError
        from streamjoin.state.log import read_latest
        from streamjoin.state.storage import ObjectStorage, StorageError

        try:
            latest = read_latest(ObjectStorage(catalog.location))
            if latest is None or latest.checkpoint.plan.key_spaces is None:
                return True
            catalog.lying(latest.checkpoint)
        except (QueryError, StorageError):
            return False
        return {each.join for each in catalog.results} <= latest.checkpoint.snapshots.timelines.keys()

    def _not_yet(self, why: str) -> bool:
        if why != self._told:
            self._told = why
            click.echo(why, err=True)
        return False


@contextlib.contextmanager
def flight_served(api: QueryApi, address: str, port: int | None, token: Token | None) -> Iterator[None]:
    """Arrow Flight, for as long as this lasts, at the port if there is to be one. Raises Failure."""
    if port is None:
        yield
        return
    from streamjoin.serve.flight import FlightPort

    try:
        flight = FlightPort(api, address, port, token=token)
    except OSError as error:
        raise not_listening("--flight", address, port, error, "choose another port, or 0 for any free one") from error
    with flight:
        click.echo(f"flight: {flight.url}", err=True)
        yield

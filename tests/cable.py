"""A TCP connection between two processes that a test can cut, freeze and mend."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from waiting import PATIENCE_SECONDS


class Cable:
    """Leads whoever connects to ``address`` to the target (``host:port``)."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_cut = False
        self.carried = 0
        """Bytes that were sent to the target."""
        self.cut_after: int | None = None
        """When so many are, the cable is cut, once."""
        self._flows = threading.Event()
        self._flows.set()
        self.holds = threading.Event()
        """Whether it was sent something for the target since it was frozen."""

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        self._flows.set()
        self.cut()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._lock:
            self._is_cut = True
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def freeze(self) -> None:
        """Let nothing through, and break nothing."""
        self._flows.clear()
        self.holds.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                cut = self._is_cut
            if cut:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target, timeout=PATIENCE_SECONDS)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open += [near, far]
            for source, sink, is_counted in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._carry, args=(source, sink, is_counted), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_counted and not self._flows.is_set():
                    self.holds.set()
                self._flows.wait()
                left = None if self.cut_after is None or not is_counted else self.cut_after - self.carried
                if left is not None and left < len(data):
                    sink.sendall(data[: max(0, left)])
                    self.cut_after = None
                    self.cut()
                    return
                sink.sendall(data)
                self.carried += len(data) if is_counted else 0
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

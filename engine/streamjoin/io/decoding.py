"""Text that is compressed, or in another encoding than UTF-8, read as the UTF-8 that it means. Offsets are of that text.

A file says by its first bytes how it is compressed (gzip, zstd, bz2, xz; several members or frames are one text), and by a byte order mark
that it is UTF-16. Another encoding the manifest names.

Always holds: the same bytes give the same text, up to the same place if they are damaged. A stream is read forward, and one that goes back
farther than ``WINDOW_BYTES`` begins anew. So each process keeps the last streams open: plans, and the splits of a file in turn, go on where
the one before ended, and a process decodes a file about once, whatever its size. Memory: ``WINDOW_BYTES`` for each stream that is open.
"""

from __future__ import annotations

import codecs
import io
import lzma
import threading
from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

from streamjoin.io.folder import Opened
from streamjoin.io.identity import Status
from streamjoin.io.lines import content_hash

CHUNK_BYTES = 1 << 18
"""So much is decompressed at once; of a damaged file, no more than this before the damage is lost."""
READ_BYTES = 1 << 20
WINDOW_BYTES = 5 << 20
"""More than a block, of which a plan may take the beginning only."""
LINE_BYTES = 64 << 20
"""A longer line is damage, which ends the text: a few bytes of a compressed file may stand for any number. Nobody asks for more at once
but for the end of such a line."""
KEPT_STREAMS = 8
XZ_BYTES = 512 << 20
"""The most memory that a file of xz may ask for; xz -9 makes files that want 65 MiB."""
HEAD_BYTES = 16
ENDINGS = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz")
"""Of names by which an object is known to be compressed before it is looked into."""
_MAGIC = ((b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\x00", "xz"))
_BZ2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
UTF_8 = "utf-8"
UNREADABLE = "streamjoin.unreadable"
"""Makes of what is no character a byte that is no UTF-8, so that its record is a dead letter."""


def _unreadable(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeDecodeError | UnicodeEncodeError)
    return ("\udcff" if isinstance(error, UnicodeDecodeError) else b"\xff"), error.end


codecs.register_error(UNREADABLE, _unreadable)


def compression_of(head: bytes) -> str:
    """How a file with these first bytes is compressed; empty: it is not."""
    if head[:3] == b"BZh" and head[4:10] in _BZ2_BLOCKS:
        return "bz2"
    return next((codec for magic, codec in _MAGIC if head.startswith(magic)), "")


def encoding_of(head: bytes, encoding: str) -> str:
    """The encoding of a text with these first bytes: the named one, unless its byte order mark is of UTF-16 or UTF-32."""
    if encoding != UTF_8:
        return encoding
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else UTF_8


def decoded(file: Opened, encoding: str) -> DecodedFile | None:
    """The file as text; None where it is UTF-8 as it is. Raises FileNotFoundError."""
    head = file.pread(HEAD_BYTES, 0)
    compression = compression_of(head)
    if not compression and encoding_of(head, encoding) == UTF_8:
        return None
    return DecodedFile(file, compression, encoding)


class DecodedFile:
    """A file as text, of which ranges are read, forward or little back. See ``folder.Opened``."""

    def __init__(self, file: Opened, compression: str, encoding: str) -> None:
        self.path = file.path
        self.raw = file
        self.compression, self._encoding = compression, encoding
        self.damage = ""
        """Why the text ends where it does; empty: it ends in order, or its end has not been reached."""
        self._stream: _Stream | None = None

    def status(self) -> Status:
        """The file's, not the text's."""
        return self.raw.status()

    @property
    def left_bytes(self) -> int:
        """An estimate of the text that has not been decoded yet."""
        return 0 if self._stream is None else self._stream.left_bytes

    def pread(self, count: int, offset: int) -> bytes:
        """As :meth:`streamjoin.io.folder.Opened.pread`. Damage ends the text."""
        if count >= LINE_BYTES:
            self.damage = f"it has a line of more than {LINE_BYTES:,} bytes"
            return b""
        if self._stream is None:
            key = (self.path, self.compression, self._encoding)
            self._stream = _taken(key, self.raw, offset) or _Stream(key, self.raw)
        found = self._stream.pread(count, offset)
        self.damage = "" if found else self._stream.damage
        return found

    def close(self) -> None:
        if self._stream is not None and self._stream.is_kept:
            _keep(self._stream)
        elif self._stream is not None:
            self._stream.file.close()
        if self._stream is None or self._stream.file is not self.raw:
            self.raw.close()


class _Stream:
    """Decodes forward. Holds the file open."""

    def __init__(self, key: tuple[str, str, str], file: Opened) -> None:
        self.key, self.file, self.status = key, file, file.status()
        self._content = content_hash(file, self.status.size) if not key[1] else ""
        self._begin()

    def _begin(self) -> None:
        _, compression, _ = self.key
        self.damage = ""
        self._raw = _Raw(self.file, self.status.size)
        self._read = _reading(io.BufferedReader(self._raw, READ_BYTES), compression)
        self._decoder: codecs.IncrementalDecoder | None = None
        self.start, self._text = 0, bytearray()
        self._is_begun = self._is_over = False

    @property
    def end(self) -> int:
        """Up to where it is decoded."""
        return self.start + len(self._text)

    @property
    def is_kept(self) -> bool:
        """Whether it may be of use again."""
        return not self._is_over or not self.key[1]

    @property
    def left_bytes(self) -> int:
        """See ``DecodedFile``."""
        read = self._raw.tell()
        return 0 if self._is_over else max(1, (self.status.size - read) * self.end // max(1, read))

    def pread(self, count: int, offset: int) -> bytes:
        if offset < self.start:
            self._begin()
        while self.end < offset + count and not self._is_over:
            self._text += self._next()
            extra = min(offset - WINDOW_BYTES - self.start, len(self._text))
            if extra > WINDOW_BYTES:
                del self._text[:extra]
                self.start += extra
        at = offset - self.start
        return bytes(self._text[at : at + count])

    def _next(self) -> bytes:
        try:
            data = self._read(CHUNK_BYTES)
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            if self._raw.error is not None:
                failure = self._raw.error
                self._begin()
                raise failure from None
            if isinstance(error, MemoryError):
                raise
            self._is_over, self.damage = True, f"it is damaged, or not complete ({str(error)[:200]})"
            return b""
        if not data:
            self._is_over = True
            if self._decoder is not None and self._decoder.getstate()[0]:
                self.damage = "it ends within a character"
            return b""
        if not self._is_begun:
            self._is_begun, encoding = True, encoding_of(data, self.key[2])
            if encoding != UTF_8:
                self._decoder = codecs.getincrementaldecoder(encoding)(UNREADABLE)
        return data if self._decoder is None else self._decoder.decode(data).encode(errors=UNREADABLE)

    def resumes(self, file: Opened) -> bool:
        """Whether this is the stream of a file that was opened again, which may have grown if it is not compressed."""
        status, known = file.status(), self.status
        if status.stamp == known.stamp:
            return True
        is_other = (status.inode, status.tag) != (known.inode, known.tag) or not HEAD_BYTES <= known.size <= status.size
        if self.key[1] or is_other or content_hash(file, known.size) != self._content:
            return False
        self.status, self._raw.size, self._content = status, status.size, content_hash(file, status.size)
        self._is_over, self.damage = False, ""
        return True


class _Raw(io.RawIOBase):
    """A file up to a size, as Python reads it."""

    def __init__(self, file: Opened, size: int) -> None:
        self._file, self.size, self._at = file, size, 0
        self.error: OSError | None = None
        """Why the file could not be read, which says nothing of what is in it."""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self._file.pread(min(len(buffer), self.size - self._at), self._at)
        except OSError as error:
            self.error = error
            raise
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True


def _reading(file: io.BufferedReader, compression: str) -> Callable[[int], bytes]:
    """What reads the decompressed text. Raises OSError, EOFError, lzma.LZMAError and pyarrow's exceptions for damage."""
    if not compression:
        return file.read
    if compression == "xz":
        return _Xz(file).read
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression).read  # type: ignore[no-any-return]


class _Xz:
    """As ``lzma.LZMAFile``, with bounded memory."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(memlimit=XZ_BYTES)

    def read(self, count: int) -> bytes:
        while True:
            one, more = self._decompressor, b""
            if one.eof:
                more = one.unused_data.lstrip(b"\0") or self._file.read(READ_BYTES).lstrip(b"\0")
                if not more and not self._file.peek(1):
                    return b""
                if more:
                    one = self._decompressor = lzma.LZMADecompressor(memlimit=XZ_BYTES)
            elif one.needs_input:
                more = self._file.read(READ_BYTES)
                if not more:
                    raise EOFError("Truncated compressed stream")
            if not one.eof and (data := one.decompress(more, count)):
                return data


_kept: OrderedDict[int, _Stream] = OrderedDict()
"""By their identity, the streams that nobody reads now, the last used at the end."""
_lock = threading.Lock()


def _taken(key: tuple[str, str, str], file: Opened, offset: int) -> _Stream | None:
    """The kept stream of the file that is nearest before ``offset``. Those of a file that was replaced are closed."""
    with _lock:
        own = [stream for stream in _kept.values() if stream.key == key]
        for stream in own:
            if not stream.resumes(file):
                _kept.pop(id(stream)).file.close()
        fitting = [stream for stream in own if id(stream) in _kept and stream.start <= offset]
        return _kept.pop(id(max(fitting, key=lambda stream: stream.end))) if fitting else None


def _keep(stream: _Stream) -> None:
    with _lock:
        _kept[id(stream)] = stream
        while len(_kept) > KEPT_STREAMS:
            _kept.popitem(last=False)[1].file.close()

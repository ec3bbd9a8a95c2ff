"""Archives that are the same, byte for byte, whoever packs them, wherever and when.

What is left out: owners, times (all entries have the one that is given), permissions but for "may be executed", the order of a directory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 1 << 20


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(directory: Path, target: Path, epoch: int, prefix: str = "") -> None:
    """Packs what is in ``directory`` into the gzipped tar ``target``, below ``prefix``; ``epoch``: seconds since 1970."""
    with _gzipped(target) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*"), key=lambda path: path.relative_to(directory).parts):
            name = Path(prefix, path.relative_to(directory)).as_posix()
            entry = archive.gettarinfo(path, name)
            _normalise(entry, epoch)
            if entry.isfile():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)


def pack_again(source: Path, target: Path, epoch: int) -> None:
    """Packs what is in a tar anew, as :func:`pack` would."""
    with tarfile.open(source) as old, _gzipped(target) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new:
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name.split("/")):
            content = old.extractfile(entry) if entry.isfile() else None
            _normalise(entry, epoch)
            new.addfile(entry, content)


def zip_again(source: Path, target: Path, epoch: int) -> None:
    """Packs what is in a zip anew, a wheel's: in its order, dated ``epoch``, and with permissions that no umask has changed."""
    date = time.gmtime(epoch)[:6]
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for each in old.infolist():
            entry = zipfile.ZipInfo(each.filename, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, to which permissions belong
            mode = each.external_attr >> 16
            entry.external_attr = (stat.S_IFREG | (0o755 if mode & 0o100 else 0o644)) << 16
            new.writestr(entry, old.read(each))


def unpack_source(archive: bytes, directory: Path) -> None:
    """Unpacks the tar of a commit (``git archive``), with permissions that no umask changes."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # there is none before Python 3.11.4
        tar.extractall(directory)  # noqa: S202 - of a commit of this repository
    for path in _everything(directory):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _everything(directory: Path) -> Iterator[Path]:
    yield directory
    yield from directory.rglob("*")


def _normalise(entry: tarfile.TarInfo, epoch: int) -> None:
    entry.mtime = epoch
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o777 if entry.issym() else 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    entry.pax_headers = {}


def _gzipped(target: Path) -> gzip.GzipFile:
    # No file name and no time in the header.
    return gzip.GzipFile(filename="", fileobj=target.open("wb"), mode="wb", compresslevel=9, mtime=0)


def compressor() -> str:
    """The library that compresses: another version of it may give other bytes for the same content."""
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}"

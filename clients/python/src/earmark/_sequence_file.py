"""The sequence file of a writer. It has the layout of the Rust client's: one line of JSON, and its checksum."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import WriterError

try:
    import fcntl
except ImportError:  # Windows.
    fcntl = None  # type: ignore[assignment]

VERSION = 1
#: Bytes of a sequence file, far more than a record takes. A larger file is not a sequence file.
FILE_BYTES_MAX = 64 << 10


class SequenceFileError(WriterError):
    """The sequence file cannot be used."""


@dataclass(frozen=True)
class Owner:
    """The writer that a file belongs to."""

    namespace: str
    vault: str | None
    client_id: str

    def __str__(self) -> str:
        vault = "" if self.vault is None else f"vault {self.vault} of "
        return f"client {self.client_id} in {vault}namespace {self.namespace}"


@dataclass(frozen=True)
class Unfinished:
    """A write whose outcome its caller has not learned."""

    sequence: int
    #: The hash of the operations; zeros if they are not known.
    content: str
    #: Whether a fence was sent under the same number.
    is_fenced: bool


@dataclass(frozen=True)
class Record:
    """The content of a sequence file."""

    #: The last sequence number that is known to be committed.
    committed: int
    unfinished: Unfinished | None


def checksum(line: str) -> str:
    """The checksum of the first line."""
    return hashlib.sha256(line.encode()).hexdigest()


def text_of(owner: Owner, record: Record) -> str:
    """The text of a record."""
    unfinished = record.unfinished
    document: dict[str, Any] = {
        "version": VERSION,
        "namespace": owner.namespace,
        "vault": owner.vault,
        "client_id": owner.client_id,
        "committed": record.committed,
        "unfinished": None
        if unfinished is None
        else {"sequence": unfinished.sequence, "content": unfinished.content, "is_fenced": unfinished.is_fenced},
    }
    line = json.dumps(document, separators=(",", ":"))
    return f"{line}\n{checksum(line)}\n"


class SequenceFile:
    """A locked sequence file. The lock is a file of its own, because every store replaces the other one."""

    def __init__(self, path: Path, owner: Owner) -> None:
        if fcntl is None:
            raise SequenceFileError(f"{path}: sequence files need a system with flock, such as Linux or macOS")
        self.path = path
        self._owner = owner
        self._lock_path = Path(f"{path}.lock")
        self._storing = threading.Lock()
        self._stamp = 0
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SequenceFileError(f"{self._lock_path}: open: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise SequenceFileError(
                f"{self._lock_path}: in use by another process; only one writer may use it"
            ) from error

    def close(self) -> None:
        """Gives the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> Record | None:
        """The stored record; None without a file."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SequenceFileError(f"{self.path}: read: {error.strerror}") from error
        if len(data) > FILE_BYTES_MAX:
            raise self._damaged("it is larger than 64 KiB")
        try:
            lines = data.decode().splitlines()
        except UnicodeDecodeError as error:
            raise self._damaged("it is not UTF-8") from error
        if len(lines) != 2:
            raise self._damaged("it does not have two lines")
        if lines[1] != checksum(lines[0]):
            raise self._damaged("its checksum does not match")
        return self._parse(lines[0])

    def _parse(self, line: str) -> Record:
        try:
            document: dict[str, Any] = json.loads(line)
            if document["version"] != VERSION:
                raise self._damaged(f"found version {document['version']}, this program knows {VERSION}")
            found = Owner(document["namespace"], document["vault"], document["client_id"])
            committed = int(document["committed"])
            stored = document["unfinished"]
            unfinished = stored and Unfinished(stored["sequence"], stored["content"], stored["is_fenced"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"it is not the JSON of a record: {error}") from error
        if found != self._owner:
            raise SequenceFileError(f"{self.path}: it belongs to {found}, not to {self._owner}")
        if unfinished is not None and unfinished.sequence != committed + 1:
            raise self._damaged("its sequence numbers are not consecutive")
        return Record(committed, unfinished)

    def store(self, text: str, stamp: int) -> None:
        """Replaces the record, unless a later store came first. A crash leaves the old record or the new one, never a
        part."""
        with self._storing:
            if stamp < self._stamp:
                return
            self._stamp = stamp
            beside = Path(f"{self.path}.new")
            try:
                with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self.path)
                folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise SequenceFileError(f"{self.path}: store: {error}") from error

    def _damaged(self, why: str) -> SequenceFileError:
        return SequenceFileError(
            f"{self.path}: {why}. Restore the file, or remove it: the writer then continues after the last sequence of "
            "the server, and the outcome of an unfinished write is lost"
        )

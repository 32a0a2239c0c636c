"""Sequenced writes, exactly once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from . import _names
from ._rules import Store
from ._sequence_file import Owner, SequenceFile, SequenceFileError, Unfinished
from ._writes import Fate, Operation, Writes
from .answers import Receipt
from .async_client import AsyncClient
from .client import Client

__all__ = ["AsyncWriter", "Fate", "Operation", "SequenceFileError", "Unfinished", "Writer"]


def _owner(client_id: str, namespace: str, vault: str | None) -> Owner:
    checked = None if vault is None else _names.name("vault", vault)
    return Owner(_names.name("namespace", namespace), checked, _names.name("client_id", client_id))


class Writer:
    """Writes transactions exactly once, one at a time. Its state is in a file and survives a kill at any moment.

    A writer that was not closed may have an `unfinished` write. Repeat or settle it before the next one.
    """

    def __init__(
        self,
        client: Client,
        path: str | os.PathLike[str],
        *,
        client_id: str,
        namespace: str = "default",
        vault: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Opens the file, and compares it with the state of the server. No other writer may use `client_id` in this
        scope: a namespace, or a vault of it.

        Without a file the writer continues after the last sequence of the server, behind a fence: once this returns, no
        earlier write can still be committed."""
        owner = _owner(client_id, namespace, vault)
        self._client = client
        self._file = SequenceFile(Path(path), owner)
        self._writes = Writes(client.options.core, owner)
        try:
            rule = self._writes.open(self._file.read(), client.options.deadline(timeout))
            client.run(rule, store=self._store)
        except BaseException:
            self._file.close()
            raise

    @property
    def unfinished(self) -> Unfinished | None:
        """The write whose outcome the caller has not learned."""
        return self._writes.unfinished

    @property
    def committed(self) -> int:
        """The last sequence number that is known to be committed."""
        return self._writes.committed

    def write(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Receipt:
        """Writes a transaction with the next sequence number. When it is `unfinished` after an error, it may have been
        committed. Otherwise it was not, and never will be."""
        rule = self._writes.write(operations, self._client.options.deadline(timeout))
        return self._client.run(rule, store=self._store)

    def repeat(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Receipt:
        """Repeats the unfinished transaction with its own sequence number. If it was committed already, the original
        receipt is returned."""
        rule = self._writes.repeat(operations, self._client.options.deadline(timeout))
        return self._client.run(rule, store=self._store)

    def settle(self, *, timeout: float | None = None) -> Fate | None:
        """Finds out whether the unfinished write was committed. If not, a fence makes sure that it never will be."""
        return self._client.run(self._writes.settle(self._client.options.deadline(timeout)), store=self._store)

    def close(self) -> None:
        """Stores that the caller knows the outcome of every write, and gives the file back."""
        try:
            self._client.run(self._writes.close(), store=self._store)
        finally:
            self._file.close()

    def _store(self, store: Store) -> None:
        self._file.store(store.text, store.stamp)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self.unfinished is None:
            self.close()
        else:
            # The caller may not know the outcome of the last write, so the file says that it is unfinished.
            self._file.close()


class AsyncWriter:
    """Writes transactions exactly once, one at a time, like `Writer`. Open it with `AsyncWriter.open`."""

    def __init__(self, client: AsyncClient, file: SequenceFile, writes: Writes) -> None:
        self._client = client
        self._file = file
        self._writes = writes
        self._busy = asyncio.Lock()

    @staticmethod
    async def open(
        client: AsyncClient,
        path: str | os.PathLike[str],
        *,
        client_id: str,
        namespace: str = "default",
        vault: str | None = None,
        timeout: float | None = None,
    ) -> AsyncWriter:
        """Opens the file, and compares it with the state of the server, like `Writer`."""
        owner = _owner(client_id, namespace, vault)
        file = SequenceFile(Path(path), owner)
        writer = AsyncWriter(client, file, Writes(client.options.core, owner))
        try:
            rule = writer._writes.open(file.read(), client.options.deadline(timeout))
            await client.run(rule, store=writer._store)
        except BaseException:
            file.close()
            raise
        return writer

    @property
    def unfinished(self) -> Unfinished | None:
        """The write whose outcome the caller has not learned."""
        return self._writes.unfinished

    @property
    def committed(self) -> int:
        """The last sequence number that is known to be committed."""
        return self._writes.committed

    async def write(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Receipt:
        """Writes a transaction with the next sequence number, like `Writer.write`."""
        async with self._busy:
            rule = self._writes.write(operations, self._client.options.deadline(timeout))
            return await self._client.run(rule, store=self._store)

    async def repeat(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Receipt:
        """Repeats the unfinished transaction with its own sequence number."""
        async with self._busy:
            rule = self._writes.repeat(operations, self._client.options.deadline(timeout))
            return await self._client.run(rule, store=self._store)

    async def settle(self, *, timeout: float | None = None) -> Fate | None:
        """Finds out whether the unfinished write was committed. If not, a fence makes sure that it never will be."""
        async with self._busy:
            rule = self._writes.settle(self._client.options.deadline(timeout))
            return await self._client.run(rule, store=self._store)

    async def close(self) -> None:
        """Stores that the caller knows the outcome of every write, and gives the file back."""
        try:
            await self._client.run(self._writes.close(), store=self._store)
        finally:
            self._file.close()

    async def _store(self, store: Store) -> None:
        # A cancelled store goes on in its thread; its stamp keeps it from replacing a later one.
        await asyncio.to_thread(self._file.store, store.text, store.stamp)

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self.unfinished is None:
            await self.close()
        else:
            self._file.close()

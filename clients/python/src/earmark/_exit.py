"""Settles leases at the exit of the interpreter, when event loops and threads are gone."""

from __future__ import annotations

import atexit
import logging
import os
import time

from ._admission import Unsettled, settle_all
from ._options import Options
from .client import Client

#: Seconds for all leases together. After it they are left to expire.
EXIT_SECONDS = 5.0

_log = logging.getLogger("earmark")
_limiters: dict[int, tuple[Unsettled, Options]] = {}


def watch(unsettled: Unsettled, options: Options) -> None:
    """Settles these leases at the exit."""
    _limiters[id(unsettled)] = (unsettled, options)


def forget(unsettled: Unsettled) -> None:
    """The limiter is gone. Leases that are not settled yet are kept for the exit."""
    if not unsettled.ids():
        _limiters.pop(id(unsettled), None)


@atexit.register
def settle() -> None:
    """Settles every lease that this process may still hold."""
    end = time.monotonic() + EXIT_SECONDS
    for unsettled, options in list(_limiters.values()):
        requests = unsettled.completes(unsettled.ids())
        if not requests:
            continue
        left = max(0.0, end - time.monotonic())
        client = Client.of(options)
        try:
            failed = client.run(settle_all(options.core, requests, options.core.env.now() + left))
        finally:
            client.close()
        for lease_id in requests:
            unsettled.settled(lease_id)
        for lease_id, failure in failed.items():
            _log.warning("lease %s could not be completed and will expire: %s", lease_id, failure)


def _forget_in_child() -> None:
    # The leases belong to the parent process, which settles them.
    for unsettled, _ in list(_limiters.values()):
        unsettled.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

"""The state of an admitted lease that the synchronous and the asynchronous client share. No I/O."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from . import _names
from ._admission import Admission, Admitted
from ._extensions import Extensions
from ._wire import Request
from .answers import Completed, Requirement
from .errors import InputError, LeaseClosed
from .work import Call, Job, Usage, Work


class LeaseBase:
    """An admitted lease. It holds its amounts until it is completed.

    A lease that is not completed counts with unknown usage: concurrency slots are freed, and everything else counts as
    fully used. That happens at the end of its `with` block, when it is garbage-collected, and at the exit of the
    interpreter.
    """

    _is_open = False

    def __init__(self, admission: Admission, admitted: Admitted, work: Work) -> None:
        answer = admitted.answer
        #: The lease id, for logs.
        self.lease_id = admitted.lease_id
        #: The server time of the admission.
        self.reserved_at_unix_ms = answer.reserved_at_unix_ms
        #: The limits that are not enforced and would have denied it.
        self.would_deny = answer.would_deny
        #: The amounts that the policy found for a call.
        self.requirements: tuple[Requirement, ...] = answer.requirements or ()
        #: The revision of the policy that admitted a call.
        self.policy_revision = answer.policy_revision
        self._admission = admission
        self._admitted_at = admission.core.env.now()
        self._work = work
        self._extended: Extensions | None = None
        self._is_open = True
        admission.unsettled.put(self.lease_id, work.as_unknown)

    def __del__(self) -> None:
        # At the exit of the interpreter and in a forked child the lease is settled or forgotten already.
        if self._is_open and self._admission.unsettled.has(self.lease_id):
            self._admission.give_back(self.lease_id)
            message = f"lease {self.lease_id} was not completed; use it in a with block"
            warnings.warn(message, ResourceWarning, stacklevel=2)

    @property
    def is_open(self) -> bool:
        """Whether the lease was not completed yet."""
        return self._is_open

    @property
    def work(self) -> Work:
        """The work that the lease was reserved for, with the amounts that extensions took."""
        return self._work if self._extended is None else self._extended.work

    @property
    def _extensions(self) -> Extensions:
        """The extensions, which few leases have."""
        if self._extended is None:
            self._extended = Extensions(self._admission, self.lease_id, self._work, self.policy_revision)
        return self._extended

    def _reserved(self) -> tuple[str, ...]:
        """The limits that the lease may have. An extension without an answer may have added some."""
        return (*self.work.limits(), *(() if self._extended is None else self._extended.maybe_added()))

    def used(self, key: str, amount: int) -> None:
        """Records the usage of a limit so far, in total. The next extension reports it, also one of `keep_alive`. It is
        charged even if this process dies, and a complete cannot report less."""
        _names.limit_key("key", key)
        self._extensions.used(key, _names.amount("amount", amount, least=0))

    def used_tokens(self, usage: Usage) -> None:
        """Records the usage of a call so far, in total, like `used`."""
        usage.json()
        self._extensions.used_tokens(usage)

    def _finish(self, request: Request[Completed]) -> Request[Completed]:
        """Closes the lease. The complete that its caller chose is sent from now on, whatever happens to the caller."""
        if not self._is_open:
            raise LeaseClosed
        self._is_open = False
        self._admission.unsettled.put(self.lease_id, lambda _: request)
        return request

    def _with_actuals(
        self, actuals: Mapping[str, int] | None, labels: Mapping[str, str] | None
    ) -> Request[Completed]:
        work = self.work
        if not isinstance(work, Job):
            raise InputError("actuals: the lease of a call is completed with a usage")
        for key in actuals or ():
            if key not in work.requirements and key not in self._reserved():
                allowed = ", ".join(self._reserved())
                raise InputError(f"actuals: found {key}, allowed are the limits of the lease: {allowed}")
        return work.complete(self.lease_id, actuals or {}, labels)

    def _with_usage(
        self, usage: Usage | None, outcome: str, labels: Mapping[str, str] | None
    ) -> Request[Completed]:
        work = self.work
        if not isinstance(work, Call):
            raise InputError("usage: only the lease of a call is completed with a usage")
        return work.settle(self.lease_id, outcome, usage, self.policy_revision, labels)

    def _unused(self) -> Request[Completed]:
        work = self.work
        if isinstance(work, Call):
            return work.settle(self.lease_id, "refused", None, self.policy_revision)
        return work.complete(self.lease_id, dict.fromkeys(self._reserved(), 0))

    def _unknown(self) -> Request[Completed]:
        work = self.work
        if isinstance(work, Call):
            return work.settle(self.lease_id, "unknown", None, self.policy_revision)
        return work.as_unknown(self.lease_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lease_id}{'' if self._is_open else ', completed'}>"


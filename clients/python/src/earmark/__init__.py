"""The Python client of Earmark: admission control and credit for LLM traffic.

`Limiter` and `AsyncLimiter` admit calls and follow the retry rules: the same lease while an outcome is unknown, a new
one after a denial, and a complete on every way out. `Writer` and `AsyncWriter` write transactions exactly once.
`earmark.openai` and `earmark.anthropic` limit every attempt of the official SDKs.
"""

from . import answers, credit, errors
from ._env import Env
from ._extensions import Extended
from ._rules import Backoff
from .answers import (
    Completed,
    Decision,
    DecisionLimit,
    DecisionPage,
    Explanation,
    LeaseView,
    Limit,
    LimitUsage,
    Receipt,
    Template,
    TopLimit,
    UsagePage,
    Whoami,
    WriteRefusal,
)
from .async_client import AsyncClient
from .async_limiter import AsyncKeepAlive, AsyncLease, AsyncLimiter
from .client import Client
from .credit import (
    Account,
    AssetStatement,
    Balance,
    Entry,
    EntryChange,
    EntryPage,
    Grant,
    Plan,
    Statement,
    StatementGroup,
)
from .errors import (
    AcquireError,
    AcquireTimeout,
    Denial,
    EarmarkError,
    ExtendError,
    Failure,
    InputError,
)
from .limiter import KeepAlive, Lease, Limiter
from .work import Call, Job, Usage
from .writer import AsyncWriter, Fate, Writer

__all__ = [
    "Account",
    "AcquireError",
    "AcquireTimeout",
    "AssetStatement",
    "AsyncClient",
    "AsyncKeepAlive",
    "AsyncLease",
    "AsyncLimiter",
    "AsyncWriter",
    "Backoff",
    "Balance",
    "Call",
    "Client",
    "Completed",
    "Decision",
    "DecisionLimit",
    "DecisionPage",
    "Denial",
    "EarmarkError",
    "Entry",
    "EntryChange",
    "EntryPage",
    "Env",
    "Explanation",
    "ExtendError",
    "Extended",
    "Failure",
    "Fate",
    "Grant",
    "InputError",
    "Job",
    "KeepAlive",
    "Lease",
    "LeaseView",
    "Limit",
    "LimitUsage",
    "Limiter",
    "Plan",
    "Receipt",
    "Statement",
    "StatementGroup",
    "Template",
    "TopLimit",
    "Usage",
    "UsagePage",
    "Whoami",
    "WriteRefusal",
    "Writer",
    "answers",
    "credit",
    "errors",
]

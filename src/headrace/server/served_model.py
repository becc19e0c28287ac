"""One of a server's models: whether it is loaded, who uses it, and what its last attempt to load has given."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.client.api import ModelInfo
from headrace.errors import HeadraceError, lasts
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.metrics import ServerMetrics
from headrace.server.model_plan import ModelPlan
from headrace.server.ollama_schemas import ShowReply

__all__ = ["FailedLoad", "ServedModel"]

_FIRST_DELAY = 1.0
_MOST_DELAY = 60.0


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """The last attempt to load, which failed."""

    error: str
    attempts: int
    """In a row."""
    retry_at: float
    """Monotonic seconds, before which no other attempt is made."""
    lasting: bool = False
    """The model itself, or its options, are wrong: another attempt fails as this one, until someone mends them."""

    def refusal(self, name: str) -> HttpError:
        wait = max(1, math.ceil(self.retry_at - time.monotonic()))
        message = f"the model {name!r} could not be loaded: {self.error}; it may be tried again in {wait} s"
        headers = {"retry-after": str(wait), **({"x-should-retry": "false"} if self.lasting else {})}
        return HttpError(503, message, kind="server_error", param="model", code="model_load_failed", headers=headers)


@dataclass(slots=True)
class ServedModel:
    """Changed by the pool alone, on the event loop's thread."""

    plan: ModelPlan
    cost: int
    """Bytes: estimated until it has been loaded, then measured."""
    context: Context | None = None
    """While it is loaded and takes requests."""
    users: int = 0
    """Requests that use it now."""
    waiters: set[asyncio.Future[Context]] = field(default_factory=set)
    """Of requests that wait for it to be loaded."""
    loading: asyncio.Task[None] | None = None
    stage: str = ""
    """What its load does now; empty if none runs."""
    progress: tuple[str, float] = ("", 0.0)
    """Of the load: its stage, and how much of it is done, from 0 to 1."""
    leaving: bool = False
    """It makes room for another model as soon as its last request has ended; new requests wait."""
    asleep: bool = False
    """It was told to sleep, and refuses requests until it is woken."""
    failed: FailedLoad | None = None
    used_at: float = 0.0
    """Monotonic seconds: when its last request came or ended."""
    keep_alive: float | None = None
    """As `ModelPlan.keep_alive`; a request of Ollama's API may change it."""
    timer: asyncio.TimerHandle | None = None
    gave_up: Callable[[], bool] | None = None
    """Whether its engine has ended and is not started again."""
    release: Callable[[], None] | None = None
    """Gives back what its tokenizer holds."""
    info: ModelInfo | None = None
    """Of its last load."""
    shown: ShowReply | None = None
    """The last answer of `/api/show`."""
    loads: int = 0
    """Times that it has been loaded."""
    load_seconds: float = 0.0
    """Of its last load."""
    metrics: ServerMetrics = field(default_factory=ServerMetrics)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def state(self) -> str:
        """`loaded`, `loading`, `asleep`, `failed` or `unloaded`."""
        if self.context is not None and not self.leaving:
            return "asleep" if self.asleep else "loaded"
        if self.asleep:
            return "asleep"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failed is None else "failed"

    @property
    def why_absent(self) -> str:
        """For a refusal of what needs a loaded model, with the remedy."""
        if self.asleep:
            return f"the model {self.name!r} is not loaded: it sleeps; POST /wake_up?model={self.name} wakes it"
        if self.loading is not None:
            return f"the model {self.name!r} is not loaded: it is loading; try again in a moment"
        if self.failed is not None:
            why = f"its load failed ({self.failed.error}); a completion that names it tries again"
            return f"the model {self.name!r} is not loaded: {why}"
        return f"the model {self.name!r} is not loaded: a completion that names it loads it"

    @property
    def expires_in(self) -> float | None:
        """Seconds until it is unloaded if no request comes; None: it stays."""
        if self.keep_alive is None:
            return None
        return max(0.0, self.keep_alive - (0.0 if self.users else time.monotonic() - self.used_at))

    @property
    def lost(self) -> bool:
        """True if it is loaded, and its engine has ended for good."""
        return self.gave_up is not None and self.gave_up()

    def take_context(self) -> Context | None:
        """The context of a model that is to be unloaded, and takes no more requests. Nothing of it is held here."""
        context, self.context = self.context, None
        release, self.release, self.gave_up = self.release, None, None
        self.leaving = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if release is not None:
            release()
        return context

    def touch(self) -> None:
        self.used_at = time.monotonic()

    def note_failure(self, error: Exception) -> FailedLoad:
        attempts = 1 if self.failed is None else self.failed.attempts + 1
        delay = min(_MOST_DELAY, _FIRST_DELAY * 2.0 ** (attempts - 1))
        what = str(error) if isinstance(error, (HeadraceError, HttpError)) else f"{type(error).__name__}: {error}"
        self.failed = FailedLoad(what, attempts, time.monotonic() + delay, lasts(error))
        return self.failed

"""State that the routes share: the engine's client, the tokenizer, the metrics, and the requests in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Scope

from headrace.client.api import EngineClient
from headrace.client.batch import SequenceLimiter
from headrace.client.request_outputs import TextStream
from headrace.config import Config
from headrace.errors import InvalidRequest
from headrace.keys.key_ring import KeyRing
from headrace.server.batch_runner import BatchRunner
from headrace.server.batch_store import BatchStore
from headrace.server.cancel_scope import CancelScope
from headrace.server.cors import Cors
from headrace.server.error_forms import error_response, family_of, status_of
from headrace.server.http_errors import HttpError
from headrace.server.kv_transfer import EngineRole
from headrace.server.metrics import ServerMetrics
from headrace.server.model_formats import ModelFormats, find_formats
from headrace.server.plan_store import PlanStore
from headrace.server.renaming import renamed
from headrace.server.request_log import is_noted, log_request
from headrace.server.request_record import RequestRecord
from headrace.server.response_store import ResponseStore
from headrace.server.tracing import Tracing
from headrace.server.waiting_tokens import WaitingTokens
from headrace.server.workers import TextWorkers
from headrace.tokenization.chat_inputs import ChatInputs

__all__ = ["Context", "ServerTokenizer", "make_context"]

_SEQUENCES = 16
"""Half of a batch's window, if the engine chooses how many sequences run."""


class ServerTokenizer(Protocol):
    """The part of the engine's tokenizer that the server uses. Called from several threads."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream: ...

    @property
    def template_source(self) -> str: ...

    @property
    def named_tokens(self) -> Mapping[str, str]: ...

    @property
    def response_template(self) -> Any: ...

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str: ...


@dataclass(slots=True)
class Context:
    """The state of one server. Used from the event loop's thread alone."""

    client: EngineClient
    tokenizer: ServerTokenizer
    model: str
    """The model's name in requests."""
    keys: KeyRing
    max_choices: int
    """Sequences that one request may have: the queue never has room for more."""
    prompt_files: str = ""
    """Which files the tokenizer was loaded from (`tokenization.prompt_files`); empty: not known."""
    aliases: frozenset[str] = frozenset()
    """Its other names in requests."""
    limited_paths: frozenset[str] = frozenset()
    """Paths whose requests count towards the limits of a key."""
    root_path: str = ""
    """The prefix under which a proxy shows the server."""
    controls: bool = False
    """Whether the routes that control the engine are there."""
    profiles: str | None = None
    """Folder of the traces that an operator asks for; None: the one in the cache."""
    cors: Cors | None = None
    """None: pages of other origins cannot read the answers."""
    responses: ResponseStore | None = None
    """Responses that clients asked to keep; None: none are kept."""
    batches: BatchStore | None = None
    """Files and batches; None: none are kept."""
    batch_window: int = 32
    """Lines of a batch that are under way at a time."""
    runner: BatchRunner | None = None
    """Works on the batches."""
    tracing: Tracing | None = None
    role: EngineRole | None = None
    """The engine's part in a group; None: it exchanges no blocks with others."""
    formats: ModelFormats = field(default_factory=ModelFormats)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    workers: TextWorkers = field(default_factory=TextWorkers)
    programs: dict[str, Any] = field(default_factory=dict)
    """Running programs by id (`program_run.ProgramRun`)."""
    plans: PlanStore = field(default_factory=PlanStore)
    program_places: SequenceLimiter | None = None
    """Sequences of all programs that are in the engine at once; made with the first program."""
    program_texts: Any = None
    """What programs share about the model's texts (`programs.model_texts.ModelTexts`); made with the first program."""
    active: set[CancelScope] = field(default_factory=set)
    """Of the requests that the engine works on."""
    inflight: int = 0
    """HTTP requests whose answer is not complete."""
    draining: bool = False
    started: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    @property
    def waiting(self) -> WaitingTokens:
        return self.metrics.waiting

    def check_model(self, name: str | None) -> None:
        """Raise HttpError 404 if `name` is not the served model's; None stands for the served model."""
        if name is not None and name != self.model and name not in self.aliases:
            raise self.no_model(name)

    def no_model(self, name: str) -> HttpError:
        """The error for a model that is not there, or that this client may not use."""
        if name == self.model:
            message = f"the model {name[:200]!r} is not open to this key"
        else:
            message = f"the model {name[:200]!r} does not exist: this server serves {self.model!r}"
        return HttpError(404, message, param="model", code="model_not_found")

    def check_choices(self, prompts: int, n: int) -> None:
        """Raise InvalidRequest for a request that even an idle server could not queue."""
        if prompts * n > self.max_choices:
            message = (
                f"{prompts} prompts with n {n} make {prompts * n} sequences, but at most {self.max_choices} may wait: "
                "send fewer, or serve with a larger --max-waiting"
            )
            raise InvalidRequest(message, "n" if prompts == 1 else "prompt", "too_many_choices")

    def note(self, scope: Scope, record: RequestRecord) -> None:
        """A request has ended."""
        if is_noted(scope):
            log_request(scope, record)
            if self.tracing is not None:
                self.tracing.note(scope, record)

    def refuse(self, error: HttpError, scope: Scope) -> Response:
        """The response for `error` in the form of the route's family. The metrics count it."""
        family = family_of(scope)
        self.metrics.errors[status_of(error, family)] += 1
        return error_response(renamed(error, scope), family)


def make_context(client: EngineClient, tokenizer: ServerTokenizer, config: Config) -> Context:
    """The state of a new server. Raises ConfigError for an API key that is empty or cannot stand in an HTTP header,
    for an unknown name of a format, and for a folder of state that cannot be written."""
    folder = None if config.server.state_dir is None else Path(config.server.state_dir)
    name, keys_file = config.server.served_model_name or client.info.name, config.server.api_keys_file
    context = Context(
        client,
        tokenizer,
        name,
        KeyRing(config.server.api_key, None if keys_file is None else Path(keys_file)),
        config.scheduler.max_waiting,
        root_path=config.server.root_path,
        controls=config.server.enable_control_routes,
        profiles=config.server.profile_dir,
        cors=Cors(config.server.cors_origin) if config.server.cors_origin else None,
        formats=find_formats(tokenizer, config.server),
        batch_window=min(2 * (config.scheduler.max_num_seqs or _SEQUENCES), max(1, config.scheduler.max_waiting // 2)),
        tracing=Tracing() if config.server.tracing else None,
        responses=None if folder is None else ResponseStore(folder),
        batches=None if folder is None else BatchStore(folder),
        role=EngineRole.of(config.transfer),
    )
    context.metrics.waiting = WaitingTokens(config.server.max_waiting_tokens)
    return context

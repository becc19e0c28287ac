"""Runs programs and plans: one, many, with or without an event loop, with or without a stream of events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from headrace.errors import HeadraceError, ProgramError, UserError, excerpt
from headrace.lang.backend import Backend, ModelSource, PlanRunner, TokenCounts
from headrace.lang.check import check
from headrace.lang.interpreter import Interpreter, NodeReport, Path, derived_seed
from headrace.lang.operators import MOST_NESTING, fits, is_deep, type_of
from headrace.lang.plan import Plan, decode_plan
from headrace.lang.server_source import server
from headrace.progress import generating_bar
from headrace.structured_outputs import StructuredOutputs

__all__ = [
    "BlockingSource",
    "Compiled",
    "LoadedPlan",
    "RunEvent",
    "RunResult",
    "Runnable",
    "Target",
    "Tools",
    "load_plan",
    "read_inputs",
]

T = TypeVar("T")
Tools = Mapping[str, Callable[..., Any]]
_CONCURRENCY = 64
"""Programs of a batch that run at once."""


@runtime_checkable
class BlockingSource(Protocol):
    """A model with an event loop of its own: `LLM`."""

    def run_with_backend(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T: ...


Target = str | ModelSource | BlockingSource
"""Where a program runs: the URL of a server, `hl.server(…)`, an `AsyncLLM`; without an event loop also an `LLM`."""


@dataclass(frozen=True, slots=True)
class Compiled:
    plan: Plan
    forms: Mapping[str, StructuredOutputs]
    """Forms that make instances of a class, by output."""
    tools: Tools


@dataclass(slots=True)
class RunResult:
    """What a run made. `result["name"]` is an output: a variable, or a value that the program returned."""

    outputs: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    """The program's state at the end; empty for a text without roles."""
    text: str = ""
    """The same as a text; of messages, the last one's content."""
    usage: TokenCounts = field(default_factory=TokenCounts)
    nodes: list[NodeReport] = field(default_factory=list)
    """Each `gen` and `select` that ran, in the order in which they ended."""
    error: HeadraceError | None = None
    """Of a batch: why this run failed. Its outputs are then empty."""

    def __getitem__(self, name: str) -> Any:
        if self.error is not None:
            raise self.error
        if name not in self.outputs:
            raise KeyError(f"{name!r} is no output; there are: {', '.join(self.outputs)}")
        return self.outputs[name]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """`text`: a piece of the text of `name`. `value`: `name` is complete. `result`: the run has ended."""

    kind: Literal["text", "value", "result"]
    name: str = ""
    path: Path = ()
    """Numbers of the branches and passes around the operation."""
    text: str = ""
    value: Any = None
    result: RunResult | None = None


class Runnable:
    """Base of `Program` and `LoadedPlan`."""

    name: str

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Arguments by name. Raises ProgramError."""
        raise NotImplementedError

    def missing(self, given: Mapping[str, Any]) -> list[str]:
        """Names of the inputs that have no default and are not given. Raises ProgramError for one that is unknown."""
        raise NotImplementedError

    def prepare(self, given: Mapping[str, Any]) -> tuple[Compiled, dict[str, Any]]:
        """The plan, and the inputs among the arguments. Raises ProgramError."""
        raise NotImplementedError

    def run(
        self, *args: Any, on: Target, seed: int | None = None, tools: Tools | None = None, **kwargs: Any
    ) -> RunResult:
        """Run on a model and wait for the end. `seed` makes every generation reproducible; `tools` are functions by
        name, for call-outs that the program has by name only. Raises ProgramError, and the errors of the model."""
        job = self._job(self.bind(*args, **kwargs), tools)
        return _blocking(on, lambda backend: job(backend, seed, None, None))

    async def arun(
        self, *args: Any, on: Target, seed: int | None = None, tools: Tools | None = None, **kwargs: Any
    ) -> RunResult:
        """As `run`, in an event loop. Cancelling it aborts its requests."""
        job = self._job(self.bind(*args, **kwargs), tools)
        async with _source(on).open_backend() as backend:
            return await job(backend, seed, None, None)

    async def astream(
        self, *args: Any, on: Target, seed: int | None = None, tools: Tools | None = None, **kwargs: Any
    ) -> AsyncIterator[RunEvent]:
        """As `arun`, with an event for each piece of text and each value; the last event has the result. Closing the
        iterator aborts the run."""
        job = self._job(self.bind(*args, **kwargs), tools)
        events: asyncio.Queue[RunEvent | BaseException] = asyncio.Queue()

        def on_text(name: str, path: Path, text: str) -> None:
            events.put_nowait(RunEvent("text", name, path, text))

        def on_value(name: str, path: Path, value: Any) -> None:
            events.put_nowait(RunEvent("value", name, path, value=value))

        async def work() -> None:
            try:
                async with _source(on).open_backend() as backend:
                    result = await job(backend, seed, on_text, on_value)
                events.put_nowait(RunEvent("result", value=result.outputs, result=result))
            except Exception as error:
                events.put_nowait(error)

        task = asyncio.ensure_future(work())
        try:
            while True:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if event.kind == "result":
                    return
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def run_batch(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        on: Target,
        seed: int | None = None,
        tools: Tools | None = None,
        concurrency: int = _CONCURRENCY,
        progress: bool | None = None,
    ) -> list[RunResult]:
        """Run once for each row of arguments, `concurrency` at once, and return the results in order. A run that fails
        has its `error` in its result; the others go on. All arguments are checked before the first run. `progress`
        draws a bar on a terminal's stderr; None: only for more than one row."""
        jobs = self._jobs(rows, tools)
        with generating_bar(len(jobs), len(jobs) > 1 if progress is None else progress) as report:
            return _blocking(on, lambda backend: _all(jobs, backend, seed, concurrency, report))

    async def arun_batch(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        on: Target,
        seed: int | None = None,
        tools: Tools | None = None,
        concurrency: int = _CONCURRENCY,
    ) -> list[RunResult]:
        """As `run_batch`, in an event loop."""
        jobs = self._jobs(rows, tools)
        async with _source(on).open_backend() as backend:
            return await _all(jobs, backend, seed, concurrency, None)

    def _jobs(self, rows: Iterable[Mapping[str, Any]], tools: Tools | None) -> list[_Job]:
        jobs = []
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ProgramError(f"a row is a mapping of arguments by name, got {excerpt(row, 60)}", f"rows[{index}]")
            try:
                jobs.append(self._job(self.bind(**row), tools))
            except ProgramError as error:
                raise ProgramError(str(error), f"rows[{index}]") from None
        return jobs

    def _job(self, given: Mapping[str, Any], tools: Tools | None) -> _Job:
        compiled, inputs = self.prepare(given)
        return _Job(compiled, read_inputs(compiled.plan, inputs), {**compiled.tools, **(tools or {})})


class LoadedPlan(Runnable):
    """A plan from a document, ready to run."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.name = plan, plan.name
        check(plan).raise_first()

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if len(args) > len(self.plan.inputs):
            raise ProgramError(f"plan {self.name!r} has {len(self.plan.inputs)} inputs, got {len(args)}")
        return {param.name: value for param, value in zip(self.plan.inputs, args, strict=False)} | kwargs

    def missing(self, given: Mapping[str, Any]) -> list[str]:
        _check_names(self.plan, given)
        return [param.name for param in self.plan.inputs if param.required and param.name not in given]

    def prepare(self, given: Mapping[str, Any]) -> tuple[Compiled, dict[str, Any]]:
        return Compiled(self.plan, {}, {}), dict(given)


def load_plan(document: bytes | str) -> LoadedPlan:
    """A plan of its JSON document. Raises ProgramError for one that `check` refuses."""
    return LoadedPlan(decode_plan(document))


def read_inputs(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every input. Raises ProgramError."""
    _check_names(plan, given)
    found: dict[str, Any] = {}
    for param in plan.inputs:
        if param.name not in given:
            if param.required:
                raise ProgramError(f"input {param.name!r} is missing", plan.name)
            found[param.name] = param.default
            continue
        value = given[param.name]
        value = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        value = list(value) if isinstance(value, tuple) else value
        if is_deep(value):
            message = f"input {param.name!r} has more than {MOST_NESTING} lists and objects inside one another"
            raise ProgramError(message, plan.name)
        try:
            kind = type_of(value)
        except TypeError as error:
            raise ProgramError(f"input {param.name!r}: {error}", plan.name) from None
        if not (fits(kind, param.type) and (param.type == "json" or kind != "json")):
            raise ProgramError(f"input {param.name!r} takes {param.type}, got {excerpt(value, 60)}", plan.name)
        found[param.name] = value
    return found


def _check_names(plan: Plan, given: Mapping[str, Any]) -> None:
    known = {param.name for param in plan.inputs}
    for name in given:
        if name not in known:
            raise ProgramError(
                f"there is no input {name!r}; there are: {', '.join(sorted(known)) or 'none'}", plan.name
            )


@dataclass(frozen=True, slots=True)
class _Job:
    """One run with its inputs."""

    compiled: Compiled
    inputs: Mapping[str, Any]
    tools: Tools

    async def __call__(self, backend: Backend, seed: int | None, on_text: Any, on_value: Any) -> RunResult:
        plan = self.compiled.plan
        there = None
        if isinstance(backend, PlanRunner) and backend.runs_plans is not False:
            there = await backend.run_plan(plan, self.inputs, self.tools, seed, on_text, on_value)
        if there is not None:
            result = RunResult(there.outputs, there.messages, there.text, there.usage, there.nodes)
        else:
            run = Interpreter(plan, backend, self.tools, seed=seed, on_text=on_text, on_value=on_value)
            outputs, end = await run.run(self.inputs)
            messages = end.as_messages() if end.is_chat else []
            text = messages[-1]["content"] if messages else end.text
            result = RunResult(outputs, messages, text, run.usage, run.nodes)
        for name, form in self.compiled.forms.items():
            result.outputs[name] = _instance(name, form, result.outputs[name])
        return result


def _instance(name: str, form: StructuredOutputs, value: Any) -> Any:
    import json

    try:
        return form.parse(json.dumps(value))
    except ValueError as error:
        raise ProgramError(f"output {name!r}: {' '.join(str(error).split())}") from None


async def _all(
    jobs: list[_Job], backend: Backend, seed: int | None, concurrency: int, report: Callable[[int], None] | None
) -> list[RunResult]:
    places = asyncio.Semaphore(max(1, concurrency))
    if len(jobs) > 1 and isinstance(backend, PlanRunner) and backend.runs_plans is None:
        await backend.find_plans()

    async def one(index: int, job: _Job) -> RunResult:
        async with places:
            own = None if seed is None else derived_seed(seed, index, ())
            try:
                result = await job(backend, own, None, None)
            except UserError as error:
                result = RunResult(error=error)
        if report is not None:
            report(result.usage.completion_tokens)
        return result

    tasks = [asyncio.ensure_future(one(index, job)) for index, job in enumerate(jobs)]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _source(on: Target) -> ModelSource:
    if isinstance(on, str):
        return server(on)
    if not hasattr(on, "open_backend"):
        raise ProgramError(
            f"`on` takes the URL of a server, hl.server(…) or an AsyncLLM in an event loop, got {excerpt(on, 60)}"
        )
    return on  # type: ignore[return-value]


def _blocking(on: Target, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
    """Run in an event loop of its own; in a thread of its own if this one has a loop already (a notebook)."""
    if isinstance(on, BlockingSource):
        return on.run_with_backend(work)
    source = _source(on)

    async def opened() -> T:
        async with source.open_backend() as backend:
            return await work(backend)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(opened())
    return _in_thread(opened)


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    found: list[T] = []
    failed: list[BaseException] = []

    def target() -> None:
        try:
            found.append(asyncio.run(work()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=target, name="headrace-program")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]

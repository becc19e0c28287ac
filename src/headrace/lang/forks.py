"""`fork`: branches that begin with copies of a state and run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from headrace.lang.control import entries_of
from headrace.lang.plan import ForkOp, Ref
from headrace.lang.state import State
from headrace.lang.tracing import Block, Snapshot, Tracer, current_tracer, fault
from headrace.lang.values import Value

__all__ = ["Branch", "Fork", "fork"]


class Branch(State):
    """The state of every branch while the block is recorded; after it, the group of the branches."""

    def __init__(self, tracer: Tracer, number: int, item: Value, index: Value) -> None:
        super().__init__(tracer, number)
        self.item, self.index = item, index
        """The entry that this branch is for, and its number from 0."""
        self._gathered: dict[str, Value] | None = None

    def gather(self, name: str) -> Value:
        """The list of the branches' values of a variable, in the order of the branches; after the block."""
        if self._gathered is None:
            raise fault("the branches' values are known only after the block of the fork")
        if name not in self._gathered:
            known = ", ".join(sorted(self._gathered)) or "none"
            raise fault(f"no variable {name!r} is bound by every branch; bound are: {known}")
        return self._gathered[name]

    def join(self, name: str, separator: Any = "\n") -> Value:
        """The branches' values of a variable as one text."""
        from headrace.lang.values import apply

        return apply("join", self.gather(name), separator)

    def __getitem__(self, name: str) -> Value:
        return super().__getitem__(name) if self._gathered is None else self.gather(name)

    def finish(self, gathered: dict[str, Value]) -> None:
        self._gathered = gathered


class Fork:
    """`with s.fork(3) as branch:` — the block is recorded once, and runs for every branch."""

    def __init__(self, state: State, over: Any, most: int | None) -> None:
        self._state = state
        self._tracer = state.tracer
        self._over, self._kind, self._max = entries_of(self._tracer, over, most)

    def __enter__(self) -> Branch:
        tracer = self._tracer
        self._ref = self._state.ref
        self._outer = {state: state.snapshot() for state in tracer.states if isinstance(state, State)}
        self._recording = tracer.block()
        self._block: Block = self._recording.__enter__()
        number = tracer.new_id()
        item, index = tracer.value(self._kind), tracer.value("int")
        self._block.args += [number, item.id, index.id]
        self._branch = Branch(tracer, number, item, index)
        before = self._state.snapshot()
        self._branch.restore(Snapshot(number, before.variables, before.maybe, before.role, before.form))
        return self._branch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recording.__exit__(kind, error, trace)
        if kind is not None:
            return
        for state, before in self._outer.items():
            if not state.snapshot().same(before):
                raise fault("inside the block of a fork, change the branch alone: the states around it are shared")
        end, before = self._branch.snapshot(), self._outer[self._state]
        made = {name: value for name, value in end.variables.items() if value is not before.variables.get(name)}
        outs = [self._tracer.new_id() for _ in made]
        region = self._block.region([Ref(value.id) for value in made.values()])
        self._tracer.emit(ForkOp(state=self._ref, over=self._over, max=self._max, body=region, outs=outs))
        lists = [self._tracer.value(f"list<{v.type}>", out) for v, out in zip(made.values(), outs, strict=True)]
        self._branch.finish(dict(zip(made, lists, strict=True)))


def fork(state: State, over: Any, body: Callable[..., Any], *, max: int | None = None) -> Branch:
    """Branches of a state, one for each entry of a list, or so many as a number says: `body(branch)` or
    `body(branch, item)` is recorded once. Returns the group, whose `["name"]` is the list of the branches' values."""
    current_tracer()
    import inspect

    wanted = len(inspect.signature(body).parameters)
    with Fork(state, over, max) as branch:
        body(branch) if wanted == 1 else body(branch, branch.item)
    return branch

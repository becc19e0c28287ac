"""Collectives over torch's process groups, without torch's process-wide default group.

The ranks of a world connect through a rendezvous that the platform's options name. A group is a subset of those ranks.
All its members create it, in the same order among the groups that they share, and each member gets its `Communicator`.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
import torch.distributed

from headrace.errors import PlatformError
from headrace.platforms.interface import Tensor

__all__ = ["TorchCommunicator", "World", "blocks"]

T = TypeVar("T")
Store = Any
"""A `torch.distributed.Store`."""
distributed: Any = torch.distributed  # its types lack many of the members that are used here
_CLASSES = {"nccl": "ProcessGroupNCCL", "xccl": "ProcessGroupXCCL"}


class TorchCommunicator:
    """One group. Inputs are not changed. Collectives on the host block; those of a device run in order with launched
    work."""

    def __init__(self, backend: Any, rank: int, size: int, timeout: float) -> None:
        """`backend`: a process group of torch. `rank`: the rank within the group."""
        self._backend, self._rank, self._size, self._timeout = backend, rank, size, timeout

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum, in x's shape and dtype."""
        out = x.clone(memory_format=torch.contiguous_format)
        self._wait("all_reduce", lambda: self._backend.allreduce([out]))
        return out

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's x, in rank order along `dim`."""
        source = x.contiguous().view(-1)  # gloo only accepts flat tensors
        out = torch.empty(self._size * source.numel(), dtype=x.dtype, device=x.device)
        self._wait("all_gather", lambda: self._backend._allgather_base(out, source))
        return torch.cat(out.view(self._size, *x.shape).unbind(0), dim)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's share of the sum along `dim`. Raises PlatformError if the dimension is not divisible."""
        if x.shape[dim] % self._size:
            raise PlatformError(
                f"reduce_scatter: dimension {dim} of {x.shape[dim]} does not divide among {self._size} ranks"
            )
        source = torch.stack(x.tensor_split(self._size, dim))
        out = torch.empty_like(source[0]).view(-1)
        self._wait("reduce_scatter", lambda: self._backend._reduce_scatter_base(out, source.view(-1)))
        return out.view(source.shape[1:])

    def all_to_all(self, x: Tensor, dim: int) -> Tensor:
        """See `interface.ExchangesBlocks`."""
        source = torch.stack(blocks(x, dim, self._size))
        out = torch.empty_like(source).view(-1)
        self._wait("all_to_all", lambda: self._backend.alltoall_base(out, source.view(-1), [], []))
        return torch.cat(out.view(source.shape).unbind(0), dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        """x of the group's `root`-th rank."""
        out = x.clone(memory_format=torch.contiguous_format)
        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._wait("broadcast", lambda: self._backend.broadcast([out], options))
        return out

    def send_rows(self, x: Tensor) -> None:
        """See `interface.PassesRows`."""
        self.broadcast(x, 0)

    def receive_rows(self, like: Tensor, width: int) -> Tensor:
        """See `interface.PassesRows`."""
        return self.broadcast(torch.empty(len(like), width, device=like.device), 0)

    def meet(self) -> None:
        """Wait until every rank of the group has connected: a rank that ends earlier would abort another's
        connection."""
        self._wait("connecting", lambda: self._backend.allreduce([torch.zeros(1)]))

    def _wait(self, name: str, launch: Callable[[], Any]) -> None:
        try:
            launch().wait()
        except (RuntimeError, ValueError) as error:
            raise PlatformError(
                f"{name}: rank {self._rank} of {self._size}: {error} (the timeout for a lost rank is "
                f"{self._timeout:.0f} s)"
            ) from error


def blocks(x: Tensor, dim: int, size: int) -> tuple[Tensor, ...]:
    """One block of `all_to_all` per rank. Raises PlatformError if the dimension is not divisible."""
    if x.shape[dim] % size:
        raise PlatformError(f"all_to_all: dimension {dim} of {x.shape[dim]} does not divide among {size} ranks")
    return tuple(x.tensor_split(size, dim))


class World:
    """All ranks of a model. Connects on first use; a single rank never connects.

    `rendezvous`: `tcp://host:port` (rank 0 listens on exactly that address), or `file:///path` of a file that does not
    exist yet, on one machine or a shared file system.
    """

    def __init__(self, rank: int, size: int, rendezvous: str, timeout: float = 60.0) -> None:
        """Raises PlatformError for invalid values, without connecting."""
        for name, value, least in (("rank", rank, 0), ("world_size", size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PlatformError(f"option {name} is {value!r}: give a count of at least {least}")
        if rank >= size:
            raise PlatformError(f"option rank is {rank}: with world_size {size} it is at most {size - 1}")
        if size > 1 and urlsplit(rendezvous).scheme not in ("tcp", "file"):
            raise PlatformError(f"option rendezvous is {rendezvous!r}: give tcp://host:port or file:///path")
        self.rank, self.size, self.timeout = rank, size, timeout
        self._address = urlsplit(rendezvous)
        self._store: Store | None = None
        self._made: Counter[tuple[int, ...]] = Counter()
        self._backends: list[Any] = []

    @property
    def local(self) -> bool:
        """True if all ranks are known to be on this machine."""
        return self._address.hostname in ("127.0.0.1", "localhost", "::1")

    def store(self, group: Sequence[int]) -> Store:
        """The key-value store of one group, shared by all its members. Connects first if needed. Raises PlatformError
        if this rank is not in the group."""
        ranks = tuple(group)
        outside = [rank for rank in ranks if not 0 <= rank < self.size]
        if outside or self.rank not in ranks or len(set(ranks)) != len(ranks):
            raise PlatformError(f"rank {self.rank} of {self.size}: cannot take part in a group of ranks {list(ranks)}")
        if self._store is None:
            self._store = self._connect()
        self._made[ranks] += 1
        return distributed.PrefixStore(f"{'-'.join(map(str, ranks))}/{self._made[ranks]}", self._store)

    def communicator(self, group: Sequence[int], backend: str) -> TorchCommunicator:
        """The communicator of a group. `backend`: torch's name, gloo, nccl or xccl. Every member of the group must call
        this. Over gloo it returns after all are connected; the other backends connect at their first collective."""
        store = self.store(group)
        rank, size = tuple(group).index(self.rank), len(group)
        made = self._make(backend, store, rank, size)
        self._backends.append(made)
        found = TorchCommunicator(made, rank, size, self.timeout)
        if backend == "gloo":
            found.meet()
        return found

    def close(self) -> None:
        """Leave the groups, without waiting for other ranks."""
        for backend in self._backends:
            with contextlib.suppress(RuntimeError, AttributeError):
                backend.abort()
        self._backends.clear()
        self._store = None

    def _make(self, backend: str, store: Store, rank: int, size: int) -> Any:
        period = timedelta(seconds=self.timeout)
        if backend == "gloo":
            options: Any = distributed.ProcessGroupGloo._Options()
            options._timeout = period
            # By default gloo looks up the machine's name, which often fails in containers.
            name = "127.0.0.1" if self.local or self._address.scheme == "file" else ""
            create: Any = distributed.ProcessGroupGloo.create_device
            options._devices = [create(hostname=name) if name else distributed.ProcessGroupGloo.create_default_device()]
            return _translated(backend, lambda: distributed.ProcessGroupGloo(store, rank, size, options))
        cls = getattr(distributed, _CLASSES[backend], None)
        if cls is None:
            raise PlatformError(f"this build of torch has no {backend}: install the one for this device")
        options = cls.Options()
        options._timeout = period
        return _translated(backend, lambda: cls(store, rank, size, options))

    def _connect(self) -> Store:
        period = timedelta(seconds=self.timeout)
        if self._address.scheme == "file":
            return _translated("rendezvous", lambda: distributed.FileStore(self._address.path, self.size))
        host, port = self._address.hostname, self._address.port
        if not host or not port:
            raise PlatformError(f"option rendezvous is {self._address.geturl()!r}: give tcp://host:port")
        if self.rank:
            return _translated("rendezvous", lambda: distributed.TCPStore(host, port, self.size, False, period))
        return _translated("rendezvous", lambda: _listening(host, port, self.size, period))


def _listening(host: str, port: int, size: int, period: timedelta) -> Store:
    """A store that listens on one address. Torch by itself would listen on every address of the machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
        return distributed.TCPStore(
            host, port, size, True, period, wait_for_workers=False, master_listen_fd=made.detach()
        )


def _translated(what: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except (RuntimeError, OSError) as error:
        raise PlatformError(f"{what}: {error}: are all ranks started, with the same rendezvous?") from error

"""Passes on what the engine says about its prefix cache, while someone listens."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.wire import CacheChanged, CacheContents, Command, WatchCache

__all__ = ["CacheFeed", "CacheListener"]

CacheListener = Callable[[CacheContents | CacheChanged], None]


class CacheFeed:
    """The engine reports nothing before the first listener comes, and after the last has gone. Thread: the client's
    event loop."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._listeners: dict[CacheListener, bool] = {}
        """Each with whether it reads the tokens of blocks."""

    def open(self, listener: CacheListener, tokens: bool = False) -> None:
        """Call `listener` with the complete contents, then with each change. Contents may come again at any time: they
        replace everything before. To open again means to ask for them."""
        self._listeners[listener] = tokens
        self.renew()

    def close(self, listener: CacheListener) -> None:
        if self._listeners.pop(listener, None) is not None and not self._listeners:
            self._send(WatchCache(False))

    def renew(self) -> None:
        """Ask for the contents, as of an engine that has just been started."""
        if self._listeners:
            self._send(WatchCache(True, any(self._listeners.values())))

    def receive(self, event: CacheContents | CacheChanged) -> None:
        for listener in list(self._listeners):
            listener(event)

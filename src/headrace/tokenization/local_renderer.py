"""Renders chat templates in this process: for a process that is itself limited, and may be killed."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.tokenization.render_frames import FAULT, Frame
from headrace.tokenization.render_process import Templates
from headrace.tokenization.renderer import Job

__all__ = ["LocalRenderer"]


class LocalRenderer:
    """Takes the place of a `Renderer`."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._templates = Templates(list(sources))

    def render(self, job: Job) -> list[Frame]:
        frames: list[Frame] = []
        for variables in job.renders():
            kind, text = self._templates.render(job.template, variables)
            content = "it needs too much memory" if text is None else text
            frames.append((FAULT if text is None else kind, False, content.encode("utf-8", "surrogatepass")))
        return frames

    async def render_async(self, job: Job) -> list[Frame]:
        return self.render(job)

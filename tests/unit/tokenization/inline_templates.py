"""Chat templates rendered in the test's own process: what they make is the same, and no process has to start."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.render_frames import Frame
from headrace.tokenization.render_process import Templates
from headrace.tokenization.renderer import Job


class InlineRenderer:
    def __init__(self, sources: list[str]) -> None:
        self._templates = Templates(sources)

    def render(self, job: Job) -> list[Frame]:
        frames: list[Frame] = []
        for variables in job.renders():
            kind, text = self._templates.render(job.template, json.loads(json.dumps(variables)))
            assert text is not None, "out of memory"
            frames.append((kind, False, text.encode("utf-8", "surrogatepass")))
        return frames


def inline_template(templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> ChatTemplate:
    template = ChatTemplate(templates, special_tokens)
    template._renderer = InlineRenderer(list(templates.values()))
    return template

"""The processes that render chat templates: hostile templates, limits, and how the processes end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InvalidRequest
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.render_frames import FAULT, TEXT, Frame
from headrace.tokenization.renderer import Job, Renderer, RenderLimits, RenderStopped

USER = [{"role": "user", "content": "hi"}]
TIGHT = RenderLimits(first_seconds=0.08, seconds=0.08, memory=96 << 20)
DOUBLED = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ END }}"
HOSTILE = {
    "kind": "{{ messages[0].content }}",
    # Time.
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{{ '' }}{% endfor %}{% endfor %}",
    "loops over text": "{% set s = 'x' * 100000 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "a tree of macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "loops in loops": (
        "{% for a in range(9999) recursive %}{% if loop.depth < 9 %}{{ loop(range(9999)) }}{% endif %}{% endfor %}"
    ),
    "compared lists": "{% set a = [0.5] * 1000000 %}{% set b = [a] * 1000000 %}"
    "{% set c = [0.5] * 1000000 %}{% set d = [c] * 1000000 %}{{ b == d }}",
    "compared trees": "{% set ns = namespace(x=[1.5], y=[1.5]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "shared lists as text": DOUBLED.replace("START", "[1]")
    .replace("STEP", "[ns.x, ns.x]")
    .replace("END", "ns.x | string"),
    "shared lists as JSON": DOUBLED.replace("START", "[1]")
    .replace("STEP", "[ns.x, ns.x]")
    .replace("END", "ns.x | tojson"),
    "rounded": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "a power of constants": "{{ 9 ** (9 ** 9) }}",
    "a power": "{{ (messages | length + 8) ** (9 ** 9) }}",
    "squares": "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "sums of lists": "{{ ([[1] * 100] * 100000) | sum(start=[]) | length }}",
    "a pipeline": "{% set s = ('x,' * 99999).split(',') %}{% for a in s %}{% set n = s | select | list %}{% endfor %}",
    # Memory.
    "long text": "{{ 'x' * 10 ** 10 }}",
    "long list": "{{ [1] * 10 ** 10 }}",
    "wide": "{{ '%9999999999d' % 1 }}",
    "wide format": "{{ '{:9999999999}'.format(1) }}",
    "wide by argument": "{{ '%*d' % (10 ** 10, 1) }}",
    "padded": "{{ 'x' | center(10 ** 10) }}",
    "indented": "{{ {'a': 1} | tojson(indent=10 ** 10) }}",
    "replaced": "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "joined": "{{ ('y' * 1000000).join(['x'] * 100000) }}",
    "repeated fields": "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "doubled text": DOUBLED.replace("START", "'ab'").replace("STEP", "ns.x ~ ns.x").replace("END", ""),
    "doubled list": DOUBLED.replace("START", "[1]").replace("STEP", "ns.x + ns.x").replace("END", ""),
    "kept slices": "{% set s = 'x' * 8000000 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(1000) %}{% set ns.l = ns.l + [s[1:]] %}{% endfor %}",
    "much output": "{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
    "too much text": "{{ 'x' * 10000000 }}",
    "long range": "{{ range(10 ** 10) | list }}",
    # Depth.
    "nested source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "endless macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}


def job(index: int, **variables: Any) -> Job:
    return Job(index, lambda: [{"messages": USER, **variables}])


@pytest.fixture(scope="module")
def hostile() -> Renderer:
    return Renderer(list(HOSTILE.values()), TIGHT)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "kind"])
def test_a_hostile_template_is_stopped_and_the_next_render_works(hostile: Renderer, name: str) -> None:
    try:
        ((kind, _, _),) = hostile.render(job(list(HOSTILE).index(name)))
    except RenderStopped as error:
        kind = "it was stopped after 0.08 s of computing" in str(error) and FAULT
    assert kind == FAULT
    assert hostile.render(job(0)) == [(TEXT, False, b"hi")]


def template(source: str, limits: RenderLimits = TIGHT) -> ChatTemplate:
    return ChatTemplate({"default": source}, {}, limits)


LONG = (
    "{% if 'work' in messages[0].content %}"
    "{% for a in range(N) %}{% for b in range(1000) %}{% endfor %}{% endfor %}{% endif %}hi"
)
WORK = [{"role": "user", "content": "work"}]


def test_a_stopped_render_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="the chat template failed: it was stopped after") as caught:
        template(LONG.replace("N", "100000")).render(ChatInputs(WORK))
    assert caught.value.code == "chat_template_error"
    with pytest.raises(InvalidRequest, match="more than 96 MiB of memory"):
        template("{{ 'x' * 10 ** 9 }}").render(ChatInputs(USER))


def test_a_long_render_runs_in_the_slow_lane() -> None:
    limits = RenderLimits(first_seconds=0.01, seconds=60)
    assert template(LONG.replace("N", "3000"), limits).render(ChatInputs(WORK)) == "hi"


def pids() -> set[int]:
    """Processes that this one has started and that render."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command, parent = (
                    (folder / "cmdline").read_bytes(),
                    (folder / "stat").read_text().rsplit(")")[1].split()[1],
                )
            except OSError:
                continue
            if b"render_process" in command and int(parent) == os.getpid():
                found.add(int(folder.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_fast_renders_do_not_wait_for_slow_ones() -> None:
    """The slow ones never end by themselves here."""
    slow = template(LONG.replace("N", "100000"), RenderLimits(first_seconds=0.05, seconds=10_000))
    assert slow.render(ChatInputs(USER)) == "hi"
    before = pids()

    async def talk() -> None:
        working = [asyncio.ensure_future(slow.render_async(ChatInputs(WORK))) for _ in range(3)]
        assert await slow.render_async(ChatInputs(USER)) == "hi"
        await asyncio.to_thread(wait_until, lambda: len(pids() - before) >= 3)
        assert await slow.render_async(ChatInputs(USER)) == "hi"
        assert not any(work.done() for work in working)
        while not all(work.done() for work in working):
            for pid in pids():
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        assert all(isinstance(work.exception(), InvalidRequest) for work in working)

    asyncio.run(talk())


@linux
def test_a_process_that_was_killed_is_replaced() -> None:
    before = pids()
    mine = template("{{ messages[0].content }}", RenderLimits())
    assert mine.render(ChatInputs(USER)) == "hi"
    (killed,) = pids() - before
    os.kill(killed, signal.SIGKILL)
    # Until it has ended it would be given the next job, which the slow lane would then run again.
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert mine.render(ChatInputs(USER)) == "hi"
    # One that stands still is given up: another takes its place, and one of the slow lane runs the job again.
    (stopped,) = pids() - before
    os.kill(stopped, signal.SIGSTOP)
    mine._renderer._fast._stuck = 0.05
    assert mine.render(ChatInputs(USER)) == "hi"
    assert stopped not in pids()
    (new,) = mine._renderer._fast._idle
    assert new._process.pid in pids() - before - {killed, stopped}


@linux
def test_a_process_that_dies_with_a_job_is_replaced() -> None:
    """It still runs when it is given the job."""
    mine = template("{{ messages[0].content }}", RenderLimits())
    assert mine.render(ChatInputs(USER)) == "hi"
    (dying,) = mine._renderer._fast._idle
    run = dying.run

    def killed(job: bytes, answers: int, seconds: float) -> list[Frame]:
        dying._process.kill()
        return run(job, answers, seconds)

    dying.run = killed  # type: ignore[method-assign]
    assert mine.render(ChatInputs(USER)) == "hi"
    assert not dying.alive
    (new,) = mine._renderer._fast._idle
    assert new is not dying
    assert new.alive


@linux
def test_its_processes_end_with_the_template() -> None:
    before = pids()
    mine = template("x")
    mine.render(ChatInputs(USER))
    assert pids() - before
    del mine
    wait_until(lambda: pids() <= before)


SCRIPT = """
import os, signal, time
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate
template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
template.warm()
print(template.render(ChatInputs([{"role": "user", "content": "hi"}])), flush=True)
print(*[process._process.pid for process in template._renderer._fast._idle], flush=True)
END
"""


@linux
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_no_process_outlives_a_script_without_a_main_guard(end: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("END", end))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    text, pid, *_ = done.stdout.split()
    assert text == "hi"
    assert not done.stderr

    def gone() -> bool:
        try:
            return b"render_process" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return True

    wait_until(gone)


BUSY = """
import threading
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.renderer import RenderLimits
source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
template = ChatTemplate({"default": source}, {}, RenderLimits(first_seconds=0.01, seconds=10_000))
inputs = ChatInputs([{"role": "user", "content": "hi"}])
for _ in range(3):
    threading.Thread(target=lambda: template.render(inputs), daemon=True).start()
slow = template._renderer._slow
with slow._changed:
    while slow._count < 2:
        slow._changed.wait(0.01)
print(slow._count)
"""


@linux
def test_the_end_of_a_script_does_not_wait_for_a_render(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BUSY)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode, done.stderr) == ("2\n", 0, "")


FORK = """
import os
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate
template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
USER = [{"role": "user", "content": "hi"}]
template.render(ChatInputs(USER))
(before,) = template._renderer._fast._idle
fork = os.fork()
assert template.render(ChatInputs(USER)) == "hi"
if fork:
    assert os.waitpid(fork, 0)[1] == 0
    assert template.render(ChatInputs(USER)) == "hi"
    assert template._renderer._fast._idle == [before] and before.alive
"""


@linux
def test_a_forked_process_starts_its_own_render_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@linux
def test_the_parents_memory_does_not_count() -> None:
    """The system reports the parent's greatest size as the process's own."""
    ballast = bytearray(300 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    before = pids()
    mine = template("hi", RenderLimits())
    assert mine.render(ChatInputs(USER)) == "hi"
    started = pids() - before
    assert mine.render(ChatInputs(USER)) == "hi"
    assert pids() - before == started


def test_long_honest_conversations_are_rendered() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": "é" * 250} for i in range(801)]
    text = template(source, RenderLimits()).render(ChatInputs(talk))
    assert text.count("é") == 801 * 250


def test_renders_from_several_threads() -> None:
    mine = template("{{ messages[0].content }}", RenderLimits())

    async def many() -> list[str]:
        talks = [[{"role": "user", "content": str(i)}] for i in range(64)]
        return [*await asyncio.gather(*(mine.render_async(ChatInputs(talk)) for talk in talks))]

    assert asyncio.run(many()) == [str(i) for i in range(64)]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [({"a": 10**40}, str(10**40)), ({"a": "\ud800"}, "\ud800"), ({"a": (1, 2)}, "[1, 2]"), ({"a": 0.1}, "0.1")],
)
def test_values_sent_to_the_process(kwargs: dict[str, Any], text: str) -> None:
    assert template("{{ a }}", RenderLimits()).render(ChatInputs(USER, kwargs=kwargs)) == text


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not plain JSON"):
        template("{{ a }}").render(ChatInputs(USER, kwargs={"a": object()}))


def test_a_template_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 1048576"):
        template("x" * (1 << 20) + "y").render(ChatInputs(USER))

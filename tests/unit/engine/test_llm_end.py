"""`LLM` where a script ends without closing it, in forked processes, and where the collector ends it: silence, and the
script's own exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

START = """
import asyncio, atexit, gc, os, sys, threading, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12 and later
from llm_fake import LLM, PARAMS, FakeAsync, begin
from engine_fakes import make_request
from headrace.types import SamplingParams
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)

def answer(llm): print(len(llm.generate("hello", PARAMS)[0].outputs[0].token_ids), flush=True)

def forever():
    while True: llm.generate(["a", "b"], LONG)
"""
SCRIPTS = {
    "idle": ("llm = LLM()\nanswer(llm)", "3"),
    "several": ("llm, other = LLM(), LLM()\nanswer(llm); other.close(); answer(llm)", "3 3"),
    "in the middle": ("llm = LLM()\nthreading.Thread(target=forever, daemon=True).start(); begin(llm)", ""),
    "in the middle, by a thread that is waited for": (
        "llm = LLM()\nshort = SamplingParams(max_tokens=200, ignore_eos=True)\n"
        "threading.Thread(target=lambda: print(len(llm.generate(['a', 'b'], short)))).start()",
        "2",
    ),
    "in the middle of a slow step": (
        "llm = LLM(delay=0.2)\nthreading.Thread(target=forever, daemon=True).start(); begin(llm)",
        "",
    ),
    "handlers at exit use it": (
        "atexit.register(lambda: answer(llm))\nllm = LLM()\natexit.register(lambda: answer(llm)); answer(llm)",
        "3 3 3",
    ),
    "made in a thread": (
        "def make():\n global llm\n llm = LLM(); answer(llm)\n"
        "thread = threading.Thread(target=make); thread.start(); thread.join()",
        "3",
    ),
    "in a running event loop": ("async def main():\n global llm\n llm = LLM(); answer(llm)\nasyncio.run(main())", "3"),
    "dropped and made again": (
        "for _ in range(2):\n llm = LLM(); answer(llm); del llm\n"
        "others = set(threading.enumerate()) - {threading.main_thread()}\nfor other in others: other.join(300)\n"
        "print(threading.active_count())",
        "3 3 1",
    ),
    "collected by its own thread": (
        "llm = LLM(); llm.cycle = llm; loop, thread = llm._loop, llm._thread\ngc.disable(); del llm\n"
        "loop.call_soon_threadsafe(gc.collect); thread.join(); print('ended')",
        "ended",
    ),
    "collected by the engine": (
        "llm = LLM(); llm.cycle = llm; pulse, thread = llm._client._stall_clock, llm._thread\ngc.disable()\n"
        "pulse.beat = lambda busy: gc.collect()\nllm.tokenizer; del llm\nthread.join(); print('ended')",
        "ended",
    ),
    "asynchronous, idle and in the middle": (
        "async def main():\n global llm\n llm = FakeAsync(); await llm.start()\n"
        " async for _ in llm.generate(make_request(max_tokens=4000)): break\n"
        " global stream; stream = llm.generate(make_request(id='x', max_tokens=4000, ignore_eos=True))\n"
        " await anext(stream)\n"
        "asyncio.run(main()); print('over')",
        "over",
    ),
    "a fork that does not use it": (
        "llm = LLM()\nif not os.fork(): sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1])); answer(llm)",
        "5 3",
    ),
    "a fork in the middle that closes and drops it": (
        "llm = LLM()\nthreading.Thread(target=forever, daemon=True).start(); begin(llm)\n"
        "if not os.fork(): llm.close(); del llm; gc.collect(); sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1])); answer(llm)",
        "5 3",
    ),
    "a fork that makes its own": (
        "llm = LLM()\nif not os.fork(): llm = LLM(); answer(llm); sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1])); answer(llm)",
        "3 5 3",
    ),
}


FORKS = """
import json
for line in sys.stdin:
    if not (child := os.fork()):
        script, *files = json.loads(line)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, 1): os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
exec(script)
sys.exit(3)
"""
"""Runs each script in a fork that has imported everything, and ends as any main program does: that is what is tested,
and imports would be most of the time."""
Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    pipe, here = subprocess.PIPE, Path(__file__).parent
    with subprocess.Popen([sys.executable, "-c", START + FORKS], cwd=here, stdin=pipe, stdout=pipe, text=True) as found:
        yield found
        assert found.communicate(timeout=300) == ("", None)


@pytest.fixture
def run(forks: subprocess.Popen[str], tmp_path: Path) -> Run:
    def forked(script: str) -> subprocess.CompletedProcess[str]:
        files = [tmp_path / "stdout", tmp_path / "stderr"]
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps([script, *map(str, files)]) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        return subprocess.CompletedProcess(script, code, *(file.read_text() for file in files))

    return forked


def test_a_script_in_a_process_of_its_own_ends_in_silence() -> None:
    script, said = SCRIPTS["idle"]
    command = [sys.executable, "-c", f"{START}{script}\nsys.exit(3)"]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, [said], "")


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_script_ends_in_silence(what: str, run: Run) -> None:
    script, said = SCRIPTS[what]
    done = run(script)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.split() == said.split()


def test_a_fork_that_uses_it_gets_an_error(run: Run) -> None:
    done = run("""
llm, client = LLM(), FakeAsync()
asyncio.run(client.start())
from headrace.errors import EngineDead
if not os.fork():
    health, stats = (lambda: asyncio.run(client.check_health())), (lambda: asyncio.run(client.stats()))
    for use in (lambda: answer(llm), llm.stats, health, stats):
        try: use()
        except EngineDead as error: print(error, flush=True)
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""")
    assert (done.returncode, done.stderr) == (3, "")
    *told, code = done.stdout.splitlines()
    assert code == "5"
    assert len(told) == 4
    assert all("was forked from process" in line and "open a model here, after the fork" in line for line in told)


def test_the_main_thread_must_wait_for_the_one_that_opens_a_model(run: Run) -> None:
    done = run("""
from headrace.client.in_process_client import InProcessClient
from headrace.errors import EngineDead
def build(config, progress):
    threading.main_thread().join()
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool: pool.submit(int)
def make():
    try: LLM()
    except EngineDead as error: print(error, flush=True)
FakeAsync.__init__ = lambda self, *_, **__: InProcessClient.__init__(self, None, None, None, build)
threading.Thread(target=make).start()
""")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("the main thread has ended: let it wait for the thread that uses the model (")


@pytest.mark.parametrize(
    ("loading", "then"),
    [
        ("while True: progress('weights', 0.5)", "[t.join() for t in threading.enumerate() if 'engine' in t.name]"),
        ("threading.Event().wait()", "pass"),
    ],
    ids=["it looks up", "it is left behind"],
)
def test_an_interrupt_while_it_loads(loading: str, then: str, run: Run) -> None:
    done = run(f"""
import signal
from headrace.client.in_process_client import InProcessClient
def build(config, progress):
    os.kill(os.getpid(), signal.SIGINT)
    {loading}
FakeAsync.__init__ = lambda self, *_, **__: InProcessClient.__init__(self, None, None, None, build)
try: LLM()
except KeyboardInterrupt: print("interrupted")
{then}
""")
    assert (done.returncode, done.stdout, done.stderr) == (3, "interrupted\n", "")

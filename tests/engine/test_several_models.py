"""Three tiny models behind one real server, of which two may be loaded: `headrace serve --config FILE`."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tiny_models
from server_harness import CONTEXT, PATIENCE, VOCAB, make_model, running, until

FILE = """
port: 0
platform: cpu
threads: 1
num_blocks: 200
max_num_seqs: 8
max_num_batched_tokens: 64
models_max: 2
enable_control_routes: true
models:
  - {model: %(a)s, name: a, aliases: [first]}
  - {model: %(b)s, name: b}
  - {model: %(c)s, name: c}
  - {model: %(broken)s, name: broken}
"""


class Several:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def complete(self, model: str, **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": model, **body})

    @property
    def engines(self) -> set[int]:
        return self._children("headrace.engine.process")

    def _children(self, module: str) -> set[int]:
        found = set()
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # Also of one that has ended and is not cleared away yet.
                if module in child.cmdline():
                    found.add(child.pid)
        return found

    @property
    def renderers(self) -> int:
        """Processes that render chat templates: one of each loaded model, and none of others."""
        return len(self._children("headrace.tokenization.render_process"))

    def states(self) -> dict[str, str]:
        return {card["id"]: card["state"] for card in self.http.get("/v1/models").json()["data"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for at, name in enumerate("abc", 1):
        found[name] = tmp_path_factory.mktemp(name)
        make_model(found[name])
        shape = {"num_hidden_layers": at, "hidden_size": 32, "max_position_embeddings": CONTEXT, "vocab_size": VOCAB}
        tiny_models.save("llama", found[name], **shape)
    found["broken"] = tmp_path_factory.mktemp("broken")
    make_model(found["broken"])
    (weights,) = found["broken"].glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    return found


@contextmanager
def several(config: Path) -> Iterator[Several]:
    command = [sys.executable, "-m", "headrace", "serve", "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"serves a, b, c, broken at (http://127\.0\.0\.1:\d+)", line)
        assert match, line
        server = Several(process, match[1])
        with server.http:
            yield server
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    config = tmp_path_factory.mktemp("config") / "headrace.yaml"
    config.write_text(FILE % models)
    with several(config) as found:
        yield found


def sampled(at: int) -> dict[str, Any]:
    sampling = {"temperature": 0.8, "seed": at, "logprobs": 3}
    return {"prompt": f"Number {at % 7}", "max_tokens": 6, "ignore_eos": True, **sampling}


def choice(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_nothing_is_loaded_until_it_is_asked_for(server: Several) -> None:
    assert server.engines == set()
    assert server.states() == {"a": "unloaded", "b": "unloaded", "c": "unloaded", "broken": "unloaded"}
    assert choice(server.complete("first", **sampled(1))) == choice(server.complete("a", **sampled(1)))
    assert server.states()["a"] == "loaded"
    assert len(server.engines) == 1


def test_answers_are_those_of_a_server_with_one_model(server: Several, models: dict[str, Path]) -> None:
    with running(models["a"], served_model_name="a") as alone:
        for at in range(3):
            expected = alone.http.post("/v1/completions", json={"model": "a", **sampled(at)})
            assert choice(server.complete("a", **sampled(at))) == choice(expected)


def test_mixed_requests_under_a_limit(server: Several) -> None:
    asked = [("abc"[at * 5 % 3], sampled(at)) for at in range(50)]
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, len(server.engines))
            ended.wait(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(50) as pool:
            crowd = list(pool.map(lambda one: choice(server.complete(one[0], **one[1])), asked))
    finally:
        ended.set()
        watcher.join()
    assert most <= 2
    loaded = {name for name, state in server.states().items() if state == "loaded"}
    assert len(loaded) == 2
    until(lambda: server.renderers <= 2)
    # Alone, and of those that are loaded: the bits of the crowd.
    for (name, body), found in zip(asked, crowd, strict=True):
        if name in loaded:
            assert choice(server.complete(name, **body)) == found


def test_the_end_of_one_engine_does_not_touch_another(server: Several) -> None:
    for name in "abc":
        server.http.post("/api/generate", json={"model": name, "keep_alive": 0, "stream": False})
    until(lambda: not server.engines)
    choice(server.complete("a", **sampled(1)))
    (engine,) = server.engines
    body = {"model": "b", "prompt": "Go", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE) as stream:
        lines = stream.iter_lines()
        next(lines)
        psutil.Process(engine).kill()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    until(lambda: server.complete("a", **sampled(1)).status_code == 200)
    assert server.states()["b"] == "loaded"
    assert 'headrace_engine_restarts_total{model="a"} 1.0' in server.http.get("/metrics").text


def test_a_client_that_leaves_while_its_model_loads(server: Several) -> None:
    name = next(name for name, state in server.states().items() if state == "unloaded" and name != "broken")
    body = {"model": name, **sampled(2)}
    with ThreadPoolExecutor(1) as pool:
        with httpx.Client(base_url=server.url) as leaver, pytest.raises(httpx.ReadTimeout):
            leaver.post("/v1/completions", json=body, timeout=httpx.Timeout(PATIENCE, read=0.3))
        stays = pool.submit(server.complete, name, **sampled(2))
        assert choice(stays.result())
    figures = server.http.get("/metrics").text
    assert f'headrace_model_requests_waiting{{model="{name}"}} 0.0' in figures


def test_a_model_that_cannot_be_loaded(server: Several) -> None:
    answer = server.complete("broken", **sampled(1))
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "model_load_failed"
    assert "model.safetensors" in error["message"]
    assert server.http.get("/health").json()["status"] == "degraded"


def test_sleep_gives_the_memory_back(server: Several) -> None:
    choice(server.complete("a", **sampled(1)))
    assert server.http.post("/reset_prefix_cache", params={"model": "a"}).json()["freed_blocks"] >= 0
    assert server.http.post("/start_profile", params={"model": "a", "steps": 3}).json()["is_profiling"]
    choice(server.complete("a", **sampled(1)))
    profile = server.http.post("/stop_profile", params={"model": "a"}).json()
    assert 1 <= profile["steps"] <= 3
    with gzip.open(profile["file"]) as trace:
        assert b"headrace: launch" in trace.read()
    engines = server.engines
    assert server.http.post("/sleep", params={"model": "a"}).json()["is_sleeping"]
    assert len(server.engines) == len(engines) - 1
    assert server.complete("a", **sampled(1)).json()["error"]["code"] == "model_asleep"
    assert not server.http.post("/wake_up", params={"model": "a"}).json()["is_sleeping"]
    assert choice(server.complete("a", **sampled(1)))

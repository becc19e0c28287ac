"""A prefill and a decode engine as servers: hand-over at the HTTP edge, faults between them, and changes of role."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from server_harness import NAME, PATIENCE, Server, make_model, running, until

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "transfer"))
from chaos_proxy import ChaosProxy, cut, flipped, held

_TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 5
_TOKENS = len(_TEXT)
_BLOCK = 16


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """(prefill, decode)"""
    folder = tmp_path_factory.mktemp("roles")
    make_model(folder / "model")
    (folder / "secret").write_text("between us\n")
    with ExitStack() as stack:
        transfer = {"kv_secret_file": str(folder / "secret"), "kv_shelf": 1 << 24, "kv_timeout": 2.0}
        found = [
            stack.enter_context(
                running(folder / "model", {"transfer": {"role": role, **transfer}, "cache": {"block_size": _BLOCK}})
            )
            for role in ("prefill", "decode")
        ]
        yield found[0], found[1]


_salts = iter(range(10**6))


def _ask(server: Server, salt: str, given: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    extra = {} if given is None else {"kv_transfer_params": given}
    answer = server.complete(prompt=_TEXT, cache_salt=salt, ignore_eos=True, **{"max_tokens": 12, **extra, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _handed(prefill: Server, salt: str, **body: Any) -> dict[str, Any]:
    answer = _ask(prefill, salt, {"do_remote_decode": True}, **{**body, "max_tokens": 1})
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


def _patient(params: dict[str, Any]) -> dict[str, Any]:
    """For blocks that do come: they have more time than the machine may stand still."""
    return {**params, "patience": 60.0}


def _words(answer: dict[str, Any]) -> object:
    (choice,) = answer["choices"]
    return choice["text"], choice["finish_reason"], choice.get("logprobs")


def _cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def _no_leaks(*servers: Server) -> Iterator[None]:
    yield
    for server in servers:

        def free(server: Server = server) -> bool:
            running = server.http.get("/v1/engine/state").json()
            return not running["running"] and running["blocks"]["held"] == 0

        until(free)


@pytest.mark.parametrize("ways", [{"temperature": 0}, {"temperature": 1.0, "seed": 11, "top_p": 0.9, "logprobs": 3}])
def test_an_answer_is_handed_over(servers: tuple[Server, Server], ways: dict[str, Any]) -> None:
    prefill, decode = servers
    with _no_leaks(prefill, decode):
        salt = f"salt-{next(_salts)}"
        whole = _ask(prefill, f"{salt}-whole", **ways)
        params = _handed(prefill, salt, **ways)
        assert params["do_remote_prefill"] is True
        assert params["remote_num_tokens"] == _TOKENS
        continued = _ask(decode, salt, _patient(params), **ways)
        assert _words(continued) == _words(whole)
        assert _cached(continued) == _TOKENS // _BLOCK * _BLOCK
        assert "kv_transfer_params" not in continued


def test_vllms_fields_alone_and_a_conversation(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    salt = f"salt-{next(_salts)}"
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": _TEXT}],
        "cache_salt": salt,
        "max_tokens": 8,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }

    def post(server: Server, **more: Any) -> dict[str, Any]:
        answer = server.http.post("/v1/chat/completions", json={**body, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    whole = post(prefill, cache_salt="whole")
    first = post(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True, "remote_host": None})
    params = first["kv_transfer_params"]
    assert params["first_token"] == whole["choices"][0]["token_ids"][0]
    vllms = {name: params[name] for name in ("do_remote_prefill", "remote_host", "remote_port", "remote_block_ids")}
    continued = post(decode, kv_transfer_params=_patient(vllms))
    assert continued["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert _cached(continued) > 300


def test_both_engines_at_once(servers: tuple[Server, Server]) -> None:
    """The decode engine knows the address beforehand, and takes each block when it has been computed."""
    prefill, decode = servers
    address = prefill.http.get("/v1/engine/role").json()["address"]
    salt = f"salt-{next(_salts)}"
    whole = _ask(decode, f"{salt}-whole")
    found: list[dict[str, Any]] = []
    given = _patient({"do_remote_prefill": True, "remote_address": address})
    waits = threading.Thread(target=lambda: found.append(_ask(decode, salt, given)))
    waits.start()
    _handed(prefill, salt)
    waits.join(PATIENCE)
    assert _words(found[0]) == _words(whole)
    assert _cached(found[0]) > 0


def _through(params: dict[str, Any], proxy: ChaosProxy) -> dict[str, Any]:
    return {**params, "remote_address": f"tcp:127.0.0.1:{proxy.port}"}


@pytest.mark.parametrize(
    "fault", [flipped(100), flipped(60_000), flipped(5_000), cut(0), cut(30_000), held(0), held(40_000)]
)
def test_a_line_that_is_bad(servers: tuple[Server, Server], fault: Callable[..., Any]) -> None:
    prefill, decode = servers
    with _no_leaks(prefill, decode):
        salt = f"salt-{next(_salts)}"
        whole = _ask(prefill, f"{salt}-whole", seed=3, temperature=1.0)
        params = _handed(prefill, salt, seed=3, temperature=1.0)
        proxy = ChaosProxy(params["remote_port"], fault)
        continued = _ask(decode, salt, _through(params, proxy), seed=3, temperature=1.0)
        proxy.close()
        assert _words(continued) == _words(whole)
        assert _cached(continued) < _TOKENS // _BLOCK * _BLOCK


def test_a_prefill_engine_that_stands_still(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    with _no_leaks(prefill, decode):
        salt = f"salt-{next(_salts)}"
        whole = _ask(decode, f"{salt}-whole")
        params = _handed(prefill, salt)
        stopped = prefill.engine
        stopped.send_signal(signal.SIGSTOP)
        try:
            until(lambda: stopped.status() == psutil.STATUS_STOPPED)
            continued = _ask(decode, salt, params)
        finally:
            stopped.send_signal(signal.SIGCONT)
        assert _words(continued) == _words(whole)
        assert _cached(continued) == 0


def test_roles_change_while_requests_run(servers: tuple[Server, Server]) -> None:
    prefill, decode = servers
    with _no_leaks(prefill, decode):
        salt = f"salt-{next(_salts)}"
        params = _handed(prefill, salt)
        whole = _ask(prefill, f"{salt}-whole", max_tokens=100)
        lines = decode.lines(prompt=_TEXT, cache_salt=salt, max_tokens=100, kv_transfer_params=params)
        first = next(lines)
        for server, role in ((prefill, "decode"), (decode, "prefill")):
            changed = server.http.post("/v1/engine/role", json={"role": role})
            assert changed.json()["role"] == server.http.get("/v1/engine/role").json()["role"] == role
        text = "".join(_piece(line) for line in (first, *lines))
        assert text == whole["choices"][0]["text"]
        back = f"salt-{next(_salts)}"
        continued = _ask(prefill, back, _patient(_handed(decode, back)))
        assert _cached(continued) == _TOKENS // _BLOCK * _BLOCK
        refused = decode.complete(kv_transfer_params=params)
        assert (refused.status_code, "role prefill" in refused.text) == (400, True)
        refused = prefill.complete(kv_transfer_params={"do_remote_decode": True})
        assert (refused.status_code, "role decode" in refused.text) == (400, True)
        for server, role in ((prefill, "prefill"), (decode, "decode")):
            server.http.post("/v1/engine/role", json={"role": role})


def _piece(line: str) -> str:
    data = line.removeprefix("data: ")
    return "" if data == "[DONE]" else str(json.loads(data)["choices"][0]["text"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_remote_prefill": True}, "needs `remote_address`"),
        ({"do_remote_prefill": True, "do_remote_decode": True}, "exclude each other"),
        ({"do_remote_prefill": 1}, "do_remote_prefill"),
        ({"do_remote_prefill": True, "remote_address": "tcp:a:1", "patience": 1e9}, "`patience` must be 0 to 60"),
        ({"do_remote_prefill": True, "remote_address": "tcp:a:1", "chain_hash": "00"}, "`chain_hash` is of another"),
        (
            {"do_remote_prefill": True, "remote_address": "tcp:a:1", "chain_hash": "00", "remote_block_size": 0},
            "`remote_block_size` must be at least 1, got 0",
        ),
        (
            {"do_remote_prefill": True, "remote_address": "tcp:a:1", "chain_hash": "00", "remote_layout": "x"},
            "`remote_layout` must be hexadecimal digits, got 'x'",
        ),
    ],
)
def test_fields_that_are_wrong(servers: tuple[Server, Server], given: dict[str, Any], message: str) -> None:
    answer = servers[1].complete(kv_transfer_params=given)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "kv_transfer_params"


def test_a_stream_that_is_handed_over(servers: tuple[Server, Server]) -> None:
    """Its last event says where the blocks are. What may begin a stop is not shown: the second engine decides."""
    prefill, decode = servers
    ways = {"temperature": 0, "max_tokens": 4}
    whole = _ask(prefill, "streamed-whole", **ways)
    text = whole["choices"][0]["text"]
    for salt, more in (("streamed-1", {}), ("streamed-2", {"stop": [text[:2] + "never"]})):
        given: dict[str, Any] = {"do_remote_decode": True}
        asked = {**ways, **more, "prompt": _TEXT, "cache_salt": salt, "ignore_eos": True}
        answer = prefill.complete(**{**asked, "max_tokens": 1, "kv_transfer_params": given, "stream": True})
        *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert done == "[DONE]"
        assert [("kv_transfer_params" in json.loads(one)) for one in events] == [False] * (len(events) - 1) + [True]
        shown = "".join(json.loads(one)["choices"][0]["text"] for one in events)
        assert shown == ("" if more else text[: len(shown)])
        assert bool(shown) != bool(more)
        continued = _ask(decode, salt, _patient(json.loads(events[-1])["kv_transfer_params"]), **ways, **more)
        assert continued["choices"][0]["text"] == text
        assert _cached(continued) == _TOKENS // _BLOCK * _BLOCK


def test_a_conversation_that_is_streamed_and_handed_over(servers: tuple[Server, Server]) -> None:
    messages = [{"role": "user", "content": _TEXT}]
    body = {"model": NAME, "messages": messages, "max_tokens": 1, "ignore_eos": True, "temperature": 0, "stream": True}
    given = {"kv_transfer_params": {"do_remote_decode": True}}
    answer = servers[0].http.post("/v1/chat/completions", json={**body, **given})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert isinstance(events[-1]["kv_transfer_params"]["first_token"], int)
    assert not any("kv_transfer_params" in one for one in events[:-1])


def test_requests_that_are_not_handed_over(servers: tuple[Server, Server]) -> None:
    answer = servers[0].complete(kv_transfer_params={"do_remote_decode": True}, prompt=["a", "b"])
    assert answer.status_code == 400
    answer = servers[0].http.post("/v1/engine/role", json={"role": "cook"})
    assert answer.status_code == 400


def test_a_prefill_engine_that_is_killed(servers: tuple[Server, Server]) -> None:
    """Before the blocks are fetched. Its server starts another one, which has another epoch."""
    prefill, decode = servers
    with _no_leaks(decode):
        salt = f"salt-{next(_salts)}"
        whole = _ask(decode, f"{salt}-whole")
        params = _handed(prefill, salt)
        os.kill(prefill.engine.pid, signal.SIGKILL)
        continued = _ask(decode, salt, params)
        assert _words(continued) == _words(whole)
        assert _cached(continued) == 0

        until(lambda: prefill.http.get("/v1/engine/role").json()["epoch"] != params["remote_epoch"])
        again = f"salt-{next(_salts)}"
        handed = _handed(prefill, again)
        assert handed["remote_epoch"] != params["remote_epoch"]
        continued = _ask(decode, again, _patient(handed))
        assert _words(continued) == _words(whole)
        assert _cached(continued) == _TOKENS // _BLOCK * _BLOCK

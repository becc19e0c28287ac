"""The log of a whole server as JSON: its own lines, the engine's and another rank's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
from server_harness import PATIENCE


def test_every_line_of_every_process_is_json(tiny_llama: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: alice, key: sk-private, tokens_per_minute: 100000}]")
    options = ["--port", "0", "--platform", "cpu", "--threads", "1", "--kv-memory", "4MiB", "--log-format", "json"]
    options += ["--tensor-parallel-size", "2", "--api-keys-file", str(keys), "--packed-cache", "0"]
    options += ["--served-model-name", "small"]
    command = [sys.executable, "-m", "headrace.cli.main", "serve", str(tiny_llama), *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert found, server.stderr and server.stderr.read()
        body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(
            f"{found[0]}/v1/completions", json=body, headers={"x-api-key": "sk-private"}, timeout=PATIENCE
        )
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
        server.terminate()
        _, text = server.communicate(timeout=PATIENCE)
    finally:
        server.kill()
        server.communicate()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"engine"} <= {line.get("process", "") for line in lines} <= {"", "engine", "rank 1"}
    assert {line.get("model") for line in lines if line.get("process")} == {"small"}
    (request,) = [line for line in lines if line["logger"] == "headrace.requests"]
    assert (request["key"], request["status"], request["output_tokens"]) == ("alice", 200, 3)
    assert any("can read the keys" in line["message"] for line in lines)
    assert "sk-private" not in text

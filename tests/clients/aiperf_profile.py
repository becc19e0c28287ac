"""aiperf: a profile of a streamed chat, without an error.

Usage: python aiperf_profile.py http://127.0.0.1:8000 CHECKPOINT
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

_REQUESTS = 6


def main(url: str, checkpoint: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    command = [str(Path(sys.executable).with_name("aiperf")), "profile", "--model", model, "--url", url]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", checkpoint, "--ui", "none"]
    command += ["--request-count", str(_REQUESTS), "--concurrency", "2", "--synthetic-input-tokens-mean", "32"]
    command += ["--output-tokens-mean", "16"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--artifact-dir", folder], capture_output=True, text=True, check=False, cwd=folder
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        (report,) = Path(folder).rglob("profile_export_aiperf.json")
        found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == _REQUESTS, found
    assert not found.get("error_summary"), found["error_summary"]
    print(found["time_to_first_token"], found["output_token_throughput"])


if __name__ == "__main__":
    main(*sys.argv[1:3])

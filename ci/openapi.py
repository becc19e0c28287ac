"""Serves a tiny random model and runs schemathesis over its OpenAPI document. See ci/openapi.sh."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path += ["tests", "tests/engine"]

import httpx
from server_harness import make_model

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def main(work: Path, cases: int, seed: int) -> int:
    model, state = work / "model", work / "state"
    if not (model / "config.json").exists():
        make_model(model)
    shutil.rmtree(state, ignore_errors=True)
    command = [sys.executable, "-m", "headrace", "serve", str(model), "--port", "0", "--state-dir", str(state)]
    with (work / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        if found is None:
            print((work / "server.log").read_text()[-3000:])
            return 1
        return _run(found[0], work, cases, seed)
    finally:
        server.terminate()
        server.wait(60)


def _run(url: str, work: Path, cases: int, seed: int) -> int:
    document = httpx.get(f"{url}/openapi.json").json()
    operations = sum(len(methods) for methods in document["paths"].values())
    (work / "openapi.json").write_text(json.dumps(document, indent=1))
    command = [str(work / "venv" / "bin" / "schemathesis"), "run", f"{url}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--checks", CHECKS]
    command += ["--max-examples", str(math.ceil(cases / operations)), "--seed", str(seed)]
    command += ["--request-timeout", "60", "--no-color", "--suppress-health-check", "all"]
    print(f"{operations} operations, {math.ceil(cases / operations)} cases each", flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

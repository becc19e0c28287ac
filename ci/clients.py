"""Installs clients of the APIs, each in an environment of its own, runs their scripts against a server, and writes the
table of docs/results/clients.md. See ci/clients.sh."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path("tests/clients")
PATIENCE = 600


@dataclass(frozen=True)
class Client:
    name: str
    packages: tuple[str, ...]
    """Requirements; the first is the client itself. Of npm, for Node."""
    scripts: tuple[str, ...]
    exact: bool = False
    """Its server computes in float32, and its scripts also get the path of the checkpoint."""
    borrows: bool = False
    """Its environment sees the packages of the checkout's: torch and transformers."""
    node: bool = False


OPENAI = ("openai_chat", "openai_parse", "openai_prediction", "openai_responses")
CLIENTS = (
    Client("openai-python 3", ("openai>=3,<4",), OPENAI),
    Client("openai-python 2", ("openai>=2,<3",), OPENAI),
    Client("openai-node", ("openai",), ("openai_node",), node=True),
    Client("anthropic", ("anthropic",), ("anthropic_messages",)),
    Client("ollama", ("ollama",), ("ollama_chat",)),
    Client("langchain-openai", ("langchain-openai",), ("langchain_tools",)),
    Client("pydantic-ai", ("pydantic-ai-slim[openai]",), ("pydantic_ai_outputs",)),
    Client("instructor", ("instructor",), ("instructor_modes",)),
    Client("litellm", ("litellm",), ("litellm_calls",)),
    Client("llama-index", ("llama-index-llms-openai-like",), ("llama_index_tools",)),
    Client("llm", ("llm",), ("llm_schemas",)),
    Client("lm-eval", ("lm-eval[api]",), ("lm_eval_tasks",), exact=True, borrows=True),
    Client("aiperf", ("aiperf",), ("aiperf_profile",), exact=True),
    Client("guidellm", ("guidellm",), ("guidellm_run",), exact=True, borrows=True),
)


@dataclass(frozen=True)
class Result:
    client: Client
    version: str
    """Empty if it could not be installed."""
    failed: tuple[str, ...]
    """Scripts."""
    seconds: float


def install(client: Client, work: Path) -> Path | None:
    """The folder of a client's environment; None if it cannot be installed."""
    folder = work / re.sub(r"[^a-z0-9]+", "-", client.name)
    if client.node:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), *client.packages]
        return folder if shutil.which("npm") and _run(command, folder / "install.log") else None
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([os.environ.get("PYTHON", sys.executable), "-m", "venv", folder], check=True)
    if client.borrows:
        (borrowed,) = folder.glob("lib/python*/site-packages")
        (borrowed / "checkout.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *client.packages, "httpx"]
    command += ["-c", "constraints/cpu.txt"] if client.borrows else []
    return folder if _run(command, folder / "install.log") else None


def _run(command: Sequence[str], log: Path) -> bool:
    with log.open("w") as out:
        return subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=1800, check=False).returncode == 0


def version(client: Client, folder: Path) -> str:
    """The installed version of the client."""
    package = re.split(r"[<>=\[]", client.packages[0])[0]
    if client.node:
        return subprocess.check_output(
            ["node", "-p", f"require('{folder}/node_modules/{package}/package.json').version"], text=True
        ).strip()
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.check_output([folder / "bin" / "python", "-c", code], text=True).strip()


def run_script(client: Client, folder: Path, script: str, given: Sequence[str], log: Path) -> bool:
    if client.node:
        # Modules are looked for beside the script.
        copy = Path(shutil.copy(SCRIPTS / f"{script}.mjs", folder))
        command = ["node", str(copy), *given]
    else:
        command = [str((folder / "bin" / "python").absolute()), str((SCRIPTS / f"{script}.py").absolute()), *given]
    with log.open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
        return done.returncode == 0
    return False


def checkpoint(work: Path) -> Path:
    """The default model as a directory of safetensors in float32, with a tokenizer of transformers."""
    folder = (work / "smollm2-float32").absolute()
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from headrace.hub.catalogue import cached_path

        file = cached_path("smollm2")
        stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        if hasattr(stored.config, "quantization_config"):
            del stored.config.quantization_config
        model = AutoModelForCausalLM.from_config(stored.config, dtype=torch.float32)
        model.load_state_dict(stored.state_dict())
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def server(*arguments: str, log: Path) -> Iterator[str]:
    """The address of a running server."""
    command = [sys.executable, "-m", "headrace", "serve", *arguments, "--port", "0", "--max-model-len", "2048"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        if found is None:
            sys.exit(f"the server did not start:\n{log.read_text()[-3000:]}")
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)


def try_out(client: Client, work: Path, given: Sequence[str]) -> Result:
    begun = time.monotonic()
    folder = install(client, work)
    if folder is None:
        print(f"NOT INSTALLED  {client.name}: see {work}/*/install.log", flush=True)
        return Result(client, "", (), 0.0)
    begun, failed = time.monotonic(), []
    for script in client.scripts:
        log = folder / f"{script}.log"
        if not run_script(client, folder, script, given, log):
            failed.append(script)
            print(f"FAILED  {client.name}: {script}\n" + "\n".join(log.read_text().splitlines()[-30:]), flush=True)
    found = Result(client, version(client, folder), tuple(failed), time.monotonic() - begun)
    if not failed:
        print(f"ok      {client.name} {found.version} ({found.seconds:.0f} s)", flush=True)
    return found


def table(results: Sequence[Result]) -> str:
    rows = ["| client | version | scripts of tests/clients | result |", "|---|---|---|---|"]
    for one in results:
        outcome = "not installed" if not one.version else f"fails: {', '.join(one.failed)}" if one.failed else "passes"
        scripts = ", ".join(f"`{script}`" for script in one.client.scripts)
        rows.append(f"| {one.client.name} | {one.version or '–'} | {scripts} | {outcome} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of clients, separated by commas")
    parser.add_argument("--table", type=Path, help="write the table here")
    parser.add_argument("--work", type=Path, default=Path("build/clients"), help="folder of the environments")
    args = parser.parse_args()
    args.work = args.work.absolute()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [one for one in CLIENTS if not args.only or one.name in args.only.split(",")]
    results: list[Result] = []
    plain = [one for one in wanted if not one.exact]
    if plain:
        with server("smollm2", log=args.work / "server.log") as url:
            results += [try_out(one, args.work, [url]) for one in plain]
    exact = [one for one in wanted if one.exact]
    if exact:
        path = str(checkpoint(args.work))
        options = ("--dtype", "float32", "--served-model-name", "smollm2-float32")
        with server(path, *options, log=args.work / "server-float32.log") as url:
            results += [try_out(one, args.work, [url, path]) for one in exact]
    if args.table:
        args.table.write_text(table(results))
    failed = [one for one in results if one.failed]
    missing = [one for one in results if not one.version]
    print(f"{len(results) - len(failed) - len(missing)} passed, {len(failed)} failed, {len(missing)} not installed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs of headrace.lang: compile one to a plan, check or draw it, or run it on a model."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.lang import RunResult

__all__ = ["configure", "run"]

_FILE = "FILE.py, FILE.py:NAME (default: `main`, or the last program of the file), or a plan in JSON"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="compile|check|graph|run|schema")
    for name, text in (
        ("compile", "print the plan as JSON"),
        ("check", "find what is wrong or never runs, and print upper bounds"),
        ("graph", "draw the plan as SVG"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        action.add_argument("file", metavar="FILE", help=_FILE)
        action.add_argument("static", nargs="*", metavar="NAME=VALUE", help="parameters that are `Static`")
        if name != "check":
            action.add_argument("-o", "--output", metavar="FILE", help="write there (default: standard output)")
    actions.add_parser("schema", help="print the JSON Schema of plans", description="Print the JSON Schema of plans.")
    _configure_run(actions.add_parser("run", help="run it on a model", description="Run a program on a model."))


def _configure_run(parser: argparse.ArgumentParser) -> None:
    from headrace.cli.text_sources import add_source_options

    add = parser.add_argument
    add("file", metavar="FILE", help=_FILE)
    add(
        "arguments",
        nargs="*",
        metavar="NAME=VALUE",
        help="arguments: JSON, or else a text; NAME=@FILE is the text of a file",
    )
    add("--model", metavar="MODEL", help="default: smollm2; with --url the first that the server lists")
    add("--rows", metavar="FILE", help="run once for each line, a JSON object of arguments; prints a line for each")
    add("--seed", type=int, metavar="N", help="makes the run reproducible")
    add("--priority", type=int, metavar="N", help="of all its requests: the lowest runs first (default: 0)")
    add("--stream", action="store_true", help="show the texts as they are generated")
    add("--concurrency", type=int, default=64, metavar="N", help="rows that run at once (default: 64)")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.cli.program_files import compiled_plan, read_arguments
    from headrace.lang import check, encode_plan, plan_graph, plan_schema

    if args.action == "schema":
        print(json.dumps(plan_schema(), indent=2))
        return 0
    if args.action == "run":
        return _run(args)
    plan = compiled_plan(args.file, read_arguments(args.static))
    report = check(plan)
    if args.action == "check":
        for problem in report.problems:
            print(f"{problem.severity}: {problem}")
        print(
            f"{plan.name}: at most {counted(report.tokens, 'token')} in {counted(report.requests, 'generation')}, "
            f"{counted(report.branches, 'branch', 'branches')} at once, {counted(report.work, 'operation')}"
            if not report.errors
            else f"{plan.name}: refused"
        )
        return 1 if report.errors else 0
    report.raise_first()
    _write(args.output, encode_plan(plan, 2).decode() + "\n" if args.action == "compile" else plan_graph(plan))
    return 0


def _write(path: str | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {path}: {error.strerror or error}") from None


def _run(args: argparse.Namespace) -> int:
    from headrace.cli.program_files import open_program, read_arguments, read_rows
    from headrace.lang.priority import check_priority

    # What is wrong with the program or its priority shows before a model is loaded.
    check_priority(args.priority or 0)
    program = open_program(args.file)
    given = read_arguments(args.arguments)
    rows: list[dict[str, Any]] | None = None
    if args.rows is None:
        _check_given(program, given)
        program.prepare(program.bind(**given))
    elif args.stream:
        raise ConfigError("--stream shows one run: leave out --rows")
    else:
        rows = [{**given, **row} for row in read_rows(args.rows)]
    if args.url is not None:
        from headrace.environment import read_environment
        from headrace.lang import server

        key = (args.api_key or read_environment().api_key or "").strip() or None
        on = _prioritised(args, server(args.url, args.model, api_key=key))
        if args.stream:
            return _printed(asyncio.run(_streamed(program, given, on, args.seed)))
        return _run_on(args, program, given, rows, on)
    from headrace.arguments import engine_options
    from headrace.cli.model_fetch import fetch_model

    path = str(fetch_model(args.model or "smollm2", args.accept_terms))
    if args.stream:
        return _printed(asyncio.run(_streamed_here(args, program, given, path)))
    from headrace.llm import LLM
    from headrace.progress import loading_bar

    with loading_bar() as progress:
        llm = LLM(path, progress=progress, **engine_options(args))
    with llm:
        return _run_on(args, program, given, rows, _prioritised(args, llm))


def _check_given(program: Any, given: dict[str, Any]) -> None:
    """Raises ConfigError that says how to give what is missing."""
    if not (names := program.missing(given)):
        return
    raise ConfigError(
        f"program {program.name!r} has no value for {', '.join(map(repr, names))}: "
        f"add {' '.join(f'{name}=VALUE' for name in names)} behind the file ({names[0]}=@FILE for a file's text), "
        "or --rows FILE with a JSON object of inputs on each line"
    )


def _prioritised(args: argparse.Namespace, on: Any) -> Any:
    from headrace.lang import prioritised

    return on if args.priority is None else prioritised(on, args.priority)


def _run_on(
    args: argparse.Namespace, program: Any, given: dict[str, Any], rows: list[dict[str, Any]] | None, on: Any
) -> int:
    if rows is None:
        return _printed(program.run(**given, on=on, seed=args.seed))
    found = program.run_batch(rows, on=on, seed=args.seed, concurrency=args.concurrency)
    for result in found:
        print(_line(result))
    return 1 if any(result.error is not None for result in found) else 0


def _printed(one: RunResult) -> int:
    print(json.dumps(_plain(one.outputs), ensure_ascii=False, indent=2))
    return 0


async def _streamed_here(args: argparse.Namespace, program: Any, given: dict[str, Any], path: str) -> RunResult:
    from headrace.arguments import engine_options
    from headrace.llm import AsyncLLM
    from headrace.progress import loading_bar

    with loading_bar() as progress:
        llm = AsyncLLM(path, progress=progress, **engine_options(args))
        await llm.start()
    try:
        return await _streamed(program, given, _prioritised(args, llm), args.seed)
    finally:
        await llm.close()


async def _streamed(program: Any, given: dict[str, Any], on: Any, seed: int | None) -> RunResult:
    """Show each text behind its name, on standard error; texts of branches are shown one after the other as they
    come."""
    shown: tuple[Any, ...] | None = None
    async for event in program.astream(**given, on=on, seed=seed):
        if event.kind == "text":
            if shown != (event.name, event.path):
                where = "".join(f"[{index}]" for index in event.path)
                print(f"{'' if shown is None else chr(10)}{event.name}{where}: ", end="", file=sys.stderr)
                shown = (event.name, event.path)
            print(event.text, end="", file=sys.stderr, flush=True)
        elif event.kind == "value" and shown == (event.name, event.path):
            shown = ()
    print(file=sys.stderr)
    result: RunResult = event.result
    return result


def _line(result: RunResult) -> str:
    found = {"error": str(result.error)} if result.error is not None else _plain(result.outputs)
    return json.dumps(found, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Outputs as JSON; instances of classes as their fields."""
    from msgspec import to_builtins

    return to_builtins(value, enc_hook=lambda one: one.model_dump(mode="json"))

"""The files of ops/: every metric and option in them exists, and they are well formed. `ci/ops.sh` tries them."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
OPS = ROOT / "ops"
sys.path += [str(ROOT / "tests" / "unit" / "server")]

from server_fakes import serve_fake  # noqa: E402

from headrace.cli.serve_command import configure  # noqa: E402
from headrace.platforms.cpu import native  # noqa: E402
from write_dashboard import FILE, dashboard  # noqa: E402

PROMETHEUS = [OPS / "prometheus" / name for name in ("rules.yml", "rules_test.yml")]


def metrics() -> set[str]:
    """The names of all samples that a server shows."""

    async def text() -> str:
        served = serve_fake()
        await served.complete()
        await served.http.get("/no/such/route")
        return (await served.http.get("/metrics")).text

    return set(re.findall(r"^(headrace_\w+)", asyncio.run(text()), re.M))


def expressions(found: Any) -> list[str]:
    if isinstance(found, dict):
        own = [found["expr"]] if isinstance(found.get("expr"), str) else []
        return own + [one for value in found.values() for one in expressions(value)]
    return [one for value in found for one in expressions(value)] if isinstance(found, list) else []


def test_every_metric_that_is_named_exists() -> None:
    known = metrics()
    board = json.loads(FILE.read_text())
    rules = yaml.safe_load(PROMETHEUS[0].read_text())
    used = [*expressions(board), *expressions(rules)]
    assert len(used) > 40
    for expression in used:
        assert set(re.findall(r"\bheadrace_\w+", expression)) <= known, expression
    series = re.findall(r"series: (headrace_\w+)", PROMETHEUS[1].read_text())
    assert series
    assert set(series) <= known
    for query in re.findall(r"headrace_\w+", json.dumps(board["templating"])):
        assert query in known


def test_recorded_series_that_alerts_use_are_recorded() -> None:
    (group,) = yaml.safe_load(PROMETHEUS[0].read_text())["groups"]
    recorded = {rule["record"] for rule in group["rules"] if "record" in rule}
    assert recorded
    for rule in group["rules"]:
        assert set(re.findall(r"headrace:\w+:\w+", rule["expr"])) <= recorded
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboard_is_current_and_its_panels_do_not_overlap() -> None:
    assert FILE.read_text() == dashboard(), "run tools/write_dashboard.py"
    board = json.loads(dashboard())
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    assert len(set(places)) == len(places) == len({one["id"] for one in board["panels"]})
    for one in board["panels"]:
        assert one["gridPos"]["x"] + one["gridPos"]["w"] <= 24
        assert one["title"]
        for target in one["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")


def served(arguments: list[str]) -> Any:
    """The options of `headrace serve`, parsed."""
    import argparse

    parser = argparse.ArgumentParser(exit_on_error=False)
    configure(parser)
    assert arguments[0] == "serve"
    return parser.parse_args(arguments[1:])


def test_the_unit_starts_with_options_that_exist() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(OPS / "headrace.service")
    command = shlex.split(unit["Service"]["ExecStart"])
    assert command[0] == "/opt/headrace/bin/headrace"
    assert served(command[1:]).state_dir == "/var/lib/headrace"
    assert int(unit["Service"]["TimeoutStopSec"]) > 30


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((OPS / "compose.yaml").read_text())
    return found


def test_the_compose_file() -> None:
    services = compose()["services"]
    assert served(["serve", "m", *services["headrace"]["command"][2:]]).log_format == "json"
    for service in services.values():
        assert "build" in service or re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", service["image"]), service
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in compose()["volumes"] or (OPS / source).exists(), source
    build = services["headrace"]["build"]
    assert build["dockerfile"] == "ops/Dockerfile"
    declared = {value.partition("=")[0] for name, value in instructions() if name == "ARG"}
    assert set(build["args"]) == declared
    scraped = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["headrace:8000"]
    assert scraped["job_name"] == "headrace"
    source = yaml.safe_load((OPS / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    board = yaml.safe_load((OPS / "grafana" / "provisioning" / "dashboards" / "headrace.yml").read_text())
    path = board["providers"][0]["options"]["path"]
    assert any(volume.partition(":")[2].startswith(path) for volume in services["grafana"]["volumes"])


INSTRUCTIONS = {
    *"ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN STOPSIGNAL USER VOLUME WORKDIR".split(),
}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (OPS / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def test_the_dockerfile() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    last = dict(found)
    stages = [value for name, value in found if name == "FROM"]
    assert all(re.match(r"[\w./-]+:[\w.-]+", stage) and "latest" not in stage for stage in stages)
    assert last["USER"] not in ("0", "root")
    assert json.loads(last["ENTRYPOINT"]) == ["headrace"]
    assert served(json.loads(last["CMD"])).host == "0.0.0.0"
    assert json.loads(last["HEALTHCHECK"].partition(" CMD ")[2])[:2] == ["python", "-c"]
    assert all(value.startswith("/") for name, value in found if name == "WORKDIR")
    for name, value in found:
        if name == "RUN" and "apt-get install" in value:
            assert "--no-install-recommends" in value
            assert "rm -rf /var/lib/apt/lists" in value
            assert "apt-get update" in value


def test_an_image_without_native_kernels_is_not_built() -> None:
    # pip installs Headrace even if they cannot be compiled.
    (install,) = [value for name, value in instructions() if name == "RUN" and "pip install" in value]
    version = re.findall(r"FROM python:(3\.\d+)-", (OPS / "Dockerfile").read_text())[0]
    library = f"/opt/headrace/lib/python{version}/site-packages/headrace/_lib/{native._NAME}"
    assert install.endswith(f"&& test -f {library}")


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for name, value in instructions()
        if name == "COPY" and not value.startswith("--from")
        for source in value.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.parametrize("file", sorted(OPS.rglob("*.y*ml")))
def test_every_file_of_yaml_is_read(file: Path) -> None:
    assert yaml.safe_load(file.read_text())

"""`--device-option`: from the command line and from Python to `Platform.open`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from headrace.arguments import add_engine_options, engine_options
from headrace.cli.command_options import build_config
from headrace.cli.doctor_command import configure
from headrace.cli.doctor_facts import operator_facts
from headrace.engine.rank_loading import device_options
from headrace.errors import PlatformError
from headrace.options import make_config
from headrace.platforms.torch_device import TorchDevice
from headrace.types import API_VERSION, Capabilities


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    add_engine_options(parser)
    return parser.parse_args(words)


def test_device_options_reach_the_platform() -> None:
    given = parsed("--device-option", "operators=mill", "--device-option", "graph_tokens=-3", "--threads", "2")
    assert device_options(build_config(given)) == {"operators": "mill", "graph_tokens": -3, "threads": 2}
    assert engine_options(given)["device_options"] == {"operators": "mill", "graph_tokens": -3}
    assert device_options(build_config(parsed())) == {}


def test_python_gives_the_same() -> None:
    config = make_config("smollm2", {"device_options": {"operators": "mill"}, "device_index": 1})
    assert (config.device.index, device_options(config)) == (1, {"operators": "mill"})


def test_a_name_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--device-option", "operators")
    assert "argument --device-option: 'operators': write NAME=VALUE" in capsys.readouterr().err


class Mill:
    name = "mill"
    api_version = API_VERSION

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []

    def open(self, index: int, options: Mapping[str, Any]) -> TorchDevice:
        self.opened.append(dict(options))
        if options.get("operators") == "sluice":
            raise PlatformError("mill: sluice is not installed: open it")
        return TorchDevice(torch.device("cpu"), Capabilities(frozenset({"float32"}), frozenset({"float32"})))


def test_doctor_opens_the_device_with_the_given_options() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    assert parser.parse_args([]).device_options == {}
    options = parser.parse_args(["--device-option", "operators=wheel"]).device_options
    mill, remedies = Mill(), list[str]()
    assert operator_facts(mill, remedies, options) is not None  # type: ignore[arg-type]
    assert operator_facts(mill, [], None) is not None  # type: ignore[arg-type]
    assert operator_facts(mill, remedies, {"operators": "sluice"}) is None  # type: ignore[arg-type]
    assert mill.opened == [{"operators": "wheel"}, {}, {"operators": "sluice"}]
    assert remedies[-1] == "mill: mill: sluice is not installed: open it"

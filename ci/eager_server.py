#!/usr/bin/env python3
"""A server of one model whose policy verifies drafts whatever they cost, for tests of what may go wrong with drafts.

python ci/eager_server.py MODEL --speculate ngram --port 8000 & python ci/aborted_requests.py --drafts 1000

Of the drafts at hand a step verifies a random number. The engine runs in this process; everything else is as `headrace
serve` has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from headrace import event_loop
from headrace.client.in_process_client import InProcessClient
from headrace.engine import startup
from headrace.hub.catalogue import resolve_model
from headrace.options import make_config
from headrace.server.lifecycle import serve
from headrace.server.listening import bound
from headrace.speculation.policy import StepShape
from headrace.speculation.speculator import Speculator
from headrace.tokenization.tokenizer import load_tokenizer

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "engine")]

from draft_engine import EagerPolicy  # noqa: E402


class AlwaysWorth(EagerPolicy):
    """Waits for the last token of a sequence whenever it has a draft."""

    def worth(self, shape: StepShape, survival: Sequence[float]) -> bool:
        return bool(survival)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--speculate", default="ngram")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--platform")
    parser.add_argument("--served-model-name")
    parser.add_argument("--num-blocks", type=int, default=600)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    args = parser.parse_args()
    path = resolve_model(args.model)
    options = {
        "speculate": args.speculate, "port": args.port, "platform": args.platform, "num_blocks": args.num_blocks,
        "max_num_seqs": args.max_num_seqs, "served_model_name": args.served_model_name or args.model,
    }  # fmt: skip
    config = make_config(str(path), options)
    tokenizer = load_tokenizer(path)
    with (
        mock.patch.object(startup, "Speculator", lambda drafter: Speculator(drafter, policy=AlwaysWorth(7))),
        bound(config.server) as listener,
    ):
        event_loop.run(serve(config, InProcessClient(config, tokenizer), tokenizer, listener))


if __name__ == "__main__":
    main()

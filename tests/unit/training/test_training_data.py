"""Text, prompts, answers, settings and the draft vocabulary."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import CheckpointError, ConfigError
from headrace.training.acceptance_report import HeldOutAcceptance
from headrace.training.answers import Answer, PromptMaker, load_answers
from headrace.training.answers_from import check_source, take_answers
from headrace.training.make_head import draft_vocabulary, unused_token
from headrace.training.settings import FEWEST, TrainingSettings, check_sizes, digest, settle
from headrace.training.text_pieces import cut_pieces, read_texts


class Characters:
    """A tokenizer of characters; 1 and 2 begin and end a message."""

    def __init__(self, chat: bool) -> None:
        self.has_chat_template = chat
        self.special_ids = frozenset({0, 1, 2, 3})
        self.eos_token_ids = (2,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(one) for one in text]

    def apply_chat_template(self, inputs: Any) -> str:
        return f"\1{inputs.messages[0]['content']}\2"

    def encode_chat(self, text: str) -> list[int]:
        return self.encode(text)


def maker(count: int, chat: bool = True) -> PromptMaker:
    tokenizer: Any = Characters(chat)
    return PromptMaker([f"piece {number}" for number in range(count)], tokenizer, 1)


def test_a_file_and_a_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("zwei – deux")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    (tmp_path / "zeros").write_bytes(b"\0\0")
    assert read_texts(tmp_path) == ["one", "zwei – deux"]
    assert read_texts(tmp_path / "a.txt") == ["one"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("absent", "no such file"), ("picture", "not UTF-8 text"), ("empty", "no file below it is UTF-8 text")],
)
def test_a_path_without_text_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"--text .*{name}: .*{why}"):
        read_texts(tmp_path / name)


def test_pieces_hold_the_text_and_are_as_long_as_asked() -> None:
    lines = [f"{number} " + "x" * (number % 30) for number in range(200)] + ["y" * 350]
    pieces = cut_pieces(["\n".join(lines)], 100, 0)
    assert all(25 <= len(piece) <= 100 for piece in pieces)
    assert {line for piece in pieces for line in piece.splitlines()} >= {line.rstrip() for line in lines[:200]}
    assert sum(piece.count("y") for piece in pieces) == 350
    assert pieces == cut_pieces(["\n".join(lines)], 100, 0) != cut_pieces(["\n".join(lines)], 100, 1)


def test_prompts_depend_on_their_number_alone() -> None:
    prompts = ["".join(map(chr, maker(40).prompt(number))) for number in range(80)]
    assert prompts == ["".join(map(chr, maker(40).prompt(number))) for number in range(80)]
    assert all(prompt.removesuffix("\2").endswith(f"piece {at % 40}") for at, prompt in enumerate(prompts))
    asked = [prompt.startswith("\1") for prompt in prompts]
    assert 40 < sum(asked) < 80
    assert len({prompt.split("\n")[0] for prompt in prompts if prompt.startswith("\1")}) > 3
    assert "".join(map(chr, maker(40, chat=False).prompt(7))) == "piece 7"


def test_no_piece_is_both_trained_on_and_held_out() -> None:
    made = maker(64)
    held = [number for number in range(256) if made.held_out(number)]
    assert len(held) == 256 // 16
    assert {number % 64 for number in held} == {30, 31, 62, 63}
    for numbers in (held, [number for number in range(256) if number not in held]):
        assert sum(made.temperature(number) > 0 for number in numbers) == len(numbers) // 2
    # Each piece is answered both ways.
    assert made.temperature(5) != made.temperature(5 + 64)


@pytest.mark.parametrize(("pieces", "count"), [(FEWEST - 1, 32), (FEWEST, 4 * FEWEST + 1)])
def test_too_little_text_is_refused(pieces: int, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"gives {pieces} pieces.*{count} answers need at least 3[23] pieces"):
        maker(pieces).check(count)


def test_answers_that_cannot_be_trained_on_are_refused_before_they_are_made() -> None:
    check_sizes(32, 9, 7)
    with pytest.raises(ConfigError, match="--answer-tokens 8: at least 9, since a draft has 7 tokens"):
        check_sizes(32, 8, 7)
    with pytest.raises(ConfigError, match="--answers 31: at least 32"):
        check_sizes(31, 9, 7)


def test_answers_are_kept_up_to_the_last_complete_line(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    one = Answer([1, 2], [3], 0.7, 4, False)
    line = json.dumps(asdict(one)) + "\n"
    file.write_text(2 * line + line[:-7])
    assert load_answers(file) == [one, one]
    assert file.read_text() == 2 * line


@pytest.mark.parametrize("text", ["3\n", "{}\n", '{"prompt": 1}\n', "no\n"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=r"answers\.jsonl: not the answers"):
        load_answers(file)


def test_the_draft_vocabulary_has_the_most_frequent_tokens() -> None:
    answers = [Answer([9, 9, 8], [5, 5, 3], 0.0, 0, False), Answer([8, 8, 8], [5, 7, 7], 0.0, 0, False)]
    assert draft_vocabulary(answers, 2, 12).tolist() == [5, 7]
    assert draft_vocabulary(answers, 4, 12).tolist() == [3, 5, 7, 8]
    assert draft_vocabulary(answers, 6, 12).tolist() == [0, 3, 5, 7, 8, 9]


def test_the_mask_is_a_special_token_that_no_text_has() -> None:
    tokenizer: Any = Characters(True)
    assert unused_token([Answer([1], [3], 0.0, 0, False)], tokenizer, (2,)) == 0
    with pytest.raises(ConfigError, match="needs a special token that no text has"):
        unused_token([Answer([1, 0], [3], 0.0, 0, False)], tokenizer, ())


SETTINGS = TrainingSettings(
    "model", "eagle3", digest(["text"]), 100, 64, 2, 4, 3, 8192, 2, 6e-4, 0, {"threads": "2", "dtype": "float32"}
)


def test_a_training_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    folder = settle(SETTINGS, tmp_path / "new" / "out", False)
    assert folder == settle(SETTINGS, tmp_path / "new" / "out", True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"method": "mtp"}, "--method was eagle3 when the training was begun, and is mtp now"),
        ({"answer_tokens": 65}, "--answer-tokens was 64 .* is 65 now"),
        ({"text": digest(["other"])}, "--text was another text when the training was begun: give"),
        ({"model": "n"}, "the model was model .* and is n now"),
        ({"engine": {"threads": "2"}}, "--dtype was float32 .* is not given now"),
        ({"engine": {**SETTINGS.engine, "quantize": "int8"}}, "--quantize was not given .* is int8 now"),
    ],
)
def test_other_settings_are_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    settle(SETTINGS, tmp_path, False)
    with pytest.raises(ConfigError, match=why):
        settle(replace(SETTINGS, **changed), tmp_path, True)


def test_a_model_is_told_by_its_files(tmp_path: Path) -> None:
    now = replace(SETTINGS, files="aa")
    settle(now, tmp_path, False)
    settle(replace(now, model="moved"), tmp_path, True)
    with pytest.raises(ConfigError, match=r"--resume: the model had other files when the training was begun: give"):
        settle(replace(now, files="bb"), tmp_path, True)


def begun(out: Path, lines: bytes, **changed: Any) -> Path:
    (settle(replace(SETTINGS, **changed), out, False) / "answers.jsonl").write_bytes(lines)
    return out


_PLAIN: dict[str, Any] = {"model": "m", "engine": {}}
VOCAB = 200
SOURCE = replace(maker(4), seed=0)
ANSWERS = [
    Answer(SOURCE.prompt(number), [3], SOURCE.temperature(number), number, SOURCE.held_out(number))
    for number in range(4)
]


def lines_of(answers: list[Answer]) -> list[bytes]:
    return [(json.dumps(asdict(one)) + "\n").encode() for one in answers]


_LINES = lines_of(ANSWERS)


def test_answers_of_another_head_are_taken(tmp_path: Path) -> None:
    """With another method and recipe; a line that is being written stays there, and is not taken."""
    other = {"method": "dflash", "epochs": 9, "batch": 1, "drafts": 1, "layers": 5, "rate": 0.5, "answers": 9}
    source, folder = begun(tmp_path / "one", b"".join(_LINES) + b"{", **other), tmp_path / "two"
    check_source(SETTINGS, source, SOURCE, VOCAB)
    folder.mkdir()
    take_answers(source, folder, 3)
    assert (folder / "answers.jsonl").read_bytes() == b"".join(_LINES[:3])
    take_answers(source, folder, 4)
    assert (folder / "answers.jsonl").read_bytes() == b"".join(_LINES[:3])
    assert (source / "training" / "answers.jsonl").read_bytes().endswith(b"{")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": "other"}, "the model was other for these answers, and is m now"),
        ({"text": "other"}, "--text was another text for these answers: give"),
        ({"seed": 8}, "--seed was 8 for these answers, and is 0 now: give the same, or leave out --answers-from"),
        ({"answer_tokens": 9}, "--answer-tokens was 9"),
        ({"engine": {"dtype": "float32"}}, "--dtype was float32 for these answers, and is not given now"),
    ],
)
def test_answers_of_something_else_are_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"--answers-from {tmp_path}: {why}"):
        check_source(replace(SETTINGS, **_PLAIN), begun(tmp_path, b"", **_PLAIN | changed), SOURCE, VOCAB)


def test_a_directory_without_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no head was trained there"):
        check_source(SETTINGS, tmp_path, SOURCE, VOCAB)
    settle(SETTINGS, tmp_path, False)
    with pytest.raises(ConfigError, match="no head was trained there"):
        check_source(SETTINGS, tmp_path, SOURCE, VOCAB)
    (tmp_path / "training" / "answers.jsonl").write_bytes(b"[]\n")
    with pytest.raises(CheckpointError, match="not the answers that a training has written"):
        check_source(SETTINGS, tmp_path, SOURCE, VOCAB)


@pytest.mark.parametrize(
    ("changed", "error", "why"),
    [
        ({"tokens": [3, VOCAB]}, CheckpointError, "answers.jsonl: answer 2 has a token that the model does not have"),
        ({"tokens": [-1]}, CheckpointError, "answer 2 has a token"),
        ({"prompt": [1, 2]}, ConfigError, "answer 2 is not to the prompt .* leave out --answers-from"),
        ({"seed": 7}, ConfigError, "answer 2 is not to the prompt"),
        ({"held_out": True}, ConfigError, "answer 2 is not to the prompt"),
        ({"tokens": "3"}, CheckpointError, "answers.jsonl: not the answers that a training has written"),
        ({"tokens": [3.5]}, CheckpointError, "not the answers"),
        ({"prompt": None}, CheckpointError, "not the answers"),
        ({"seed": "0"}, CheckpointError, "not the answers"),
    ],
)
def test_answers_to_something_else_are_refused(
    changed: dict[str, Any], error: type[Exception], why: str, tmp_path: Path
) -> None:
    answers = [*ANSWERS[:2], replace(ANSWERS[2], **changed), ANSWERS[3]]
    source = begun(tmp_path, b"".join(lines_of(answers)))
    with pytest.raises(error, match=why):
        check_source(SETTINGS, source, SOURCE, VOCAB)


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff", b"3", b"{}", b'{"prompt": 1}'])
def test_a_line_that_is_no_answer_is_refused(line: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"answers\.jsonl: not the answers that a training has written"):
        check_source(SETTINGS, begun(tmp_path, line + b"\n"), SOURCE, VOCAB)


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="it is not an empty directory"):
            settle(SETTINGS, out, False)
    with pytest.raises(ConfigError, match="no training was begun in"):
        settle(SETTINGS, tmp_path, True)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_damaged_settings_are_refused(content: str, tmp_path: Path) -> None:
    (settle(SETTINGS, tmp_path, False) / "settings.json").write_text(content)
    with pytest.raises(CheckpointError, match="not the settings of a training"):
        settle(SETTINGS, tmp_path, True)


def test_a_draft_counts_only_after_those_before_it() -> None:
    found = HeldOutAcceptance(3)
    found.add(torch.tensor([[True, True, False], [False, True, True]]), 0.0)
    found.add(torch.tensor([[True, True, True], [True, False, True]]), 0.7)
    assert found.rates("greedy") == [0.5, 0.5, 0.0]
    assert found.rates("sampled") == [1.0, 0.5, 0.5]
    assert found.rates() == [0.75, 0.5, 0.25]
    assert found.line() == (
        "0.750 0.500 0.250, 2.50 tokens a step; greedy 0.500 0.500 0.000; sampled 1.000 0.500 0.500"
    )
    assert HeldOutAcceptance(2).rates() == [0.0, 0.0]

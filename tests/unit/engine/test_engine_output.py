"""From deltas to pieces: text, ids, logprobs, stops, echo, usage, and how pieces are merged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from engine_fakes import EOS, ByteTokenizer, delta, make_request, scored

from headrace.client.api import GenerateRequest, Output, Usage
from headrace.client.request_outputs import ChoiceBuilder, RequestOutputs
from headrace.types import Delta, TokenLogprobs


def choice(request: GenerateRequest) -> ChoiceBuilder:
    return ChoiceBuilder(0, request, ByteTokenizer())


def outputs(request: GenerateRequest, arrival: float = 0.0) -> RequestOutputs:
    return RequestOutputs(request, ByteTokenizer(), arrival)


def test_text_and_ids() -> None:
    c = choice(make_request())
    assert c.push(delta("hé")) == Output(0, "hé", list("hé".encode()))
    assert not c.finished
    last = c.push(delta("!", finish_reason="length"))
    assert (last.text, last.finish_reason, c.finished) == ("!", "length", True)


def test_half_a_character_waits_for_the_rest() -> None:
    c = choice(make_request())
    first, second = "é".encode()
    assert c.push(delta([first])).text == ""
    assert c.push(delta([second])).text == "é"


def test_half_a_character_at_the_end_shows_once() -> None:
    c = choice(make_request())
    assert c.push(delta(["é".encode()[0]], finish_reason="length")).text == "\ufffd"


def test_stop_string_over_tokens() -> None:
    c = choice(make_request(stop=("lo w",)))
    assert c.push(delta("hello")).text == "hel"
    out = c.push(delta(" world", logprobs=True))
    assert (out.text, out.finish_reason, out.stop_reason) == ("", "stop", "lo w")
    assert out.token_ids == list(b" w")
    assert c.generated == 7


def test_stop_string_keeps_ids_and_logprobs_of_equal_length() -> None:
    c = choice(make_request(stop=("c",), logprobs=1))
    out = c.push(delta("abcdef", logprobs=True))
    assert out.text == "ab"
    assert [e.token_id for e in out.logprobs or []] == out.token_ids == list(b"abc")


def test_include_stop_string() -> None:
    c = choice(make_request(stop=("c",), include_stop_str_in_output=True))
    assert c.push(delta("abcdef")).text == "abc"


def test_length_while_text_is_held() -> None:
    c = choice(make_request(stop=("cde",)))
    out = c.push(delta("abcd", finish_reason="length"))
    assert (out.text, out.finish_reason, out.stop_reason) == ("abcd", "length", None)


def test_what_another_engine_goes_on_with_is_left_to_it() -> None:
    """It may become a stop, or another character."""
    given = replace(make_request(stop=("cde",)), gives_blocks=True)
    assert choice(given).push(delta("abcd", finish_reason="length")).text == "ab"
    out = choice(given).push(delta(b"ab\xc3", finish_reason="length"))
    assert (out.text, out.finish_reason) == ("ab", "length")
    assert choice(given).push(delta("xabcde", finish_reason="length")).finish_reason == "stop"
    assert choice(given).push(delta("abc", finish_reason="stop")).text == "abc", "nothing follows"


def test_a_stop_string_wins_over_length_in_the_same_delta() -> None:
    out = choice(make_request(stop=("d",))).push(delta("abcd", finish_reason="length"))
    assert (out.text, out.finish_reason, out.stop_reason) == ("abc", "stop", "d")


def test_a_stop_that_ends_with_an_unfinished_character() -> None:
    out = choice(make_request(stop=("\ufffd",))).push(delta(b"a\xc3", finish_reason="length"))
    assert (out.text, out.finish_reason) == ("a", "stop")


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "aZ")])
def test_stop_token(include: bool, text: str) -> None:
    c = choice(make_request(stop_token_ids=(90,), include_stop_str_in_output=include))
    out = c.push(delta("aZ", finish_reason="stop", stop_token=90))
    assert (out.text, out.stop_reason, out.token_ids) == (text, 90, [97, 90])


@pytest.mark.parametrize(("skip", "text"), [(True, "a"), (False, "a<257>")])
def test_end_token_in_the_output(skip: bool, text: str) -> None:
    c = choice(make_request(include_stop_str_in_output=True, skip_special_tokens=skip))
    assert c.push(delta([97, EOS], finish_reason="stop", stop_token=EOS)).text == text


def test_a_stop_token_that_came_before_is_text() -> None:
    c = choice(make_request(min_tokens=2, stop_token_ids=(90,)))
    assert c.push(delta("ZaZ", finish_reason="stop", stop_token=90)).text == "Za"


def test_min_tokens_come_before_any_stop_string() -> None:
    c = choice(make_request(min_tokens=3, stop=("a",)))
    out = c.push(delta("aababab"))
    assert (out.text, out.stop_reason) == ("aab", "a")


def test_logprob_entries() -> None:
    c = choice(make_request(logprobs=2))
    token = "é".encode()[0]
    entry = (c.push(delta([token], logprobs=True)).logprobs or [])[0]
    assert (entry.token_id, entry.token, entry.raw) == (token, "\ufffd", bytes([token]))
    assert (entry.logprob, entry.rank) == (-token / 100, 1 + token % 3)
    assert entry.top == tuple((t, "\ufffd", bytes([t]), v) for t, v in scored(token).top)


def test_fewer_alternatives_than_the_step_computed() -> None:
    entries = choice(make_request(logprobs=0)).push(delta("a", logprobs=True)).logprobs or []
    assert entries[0].top == ()


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_no_number_is_infinite(value: float) -> None:
    d = Delta("r#0", [97], [TokenLogprobs(97, value, 1, ((98, value),))])
    entry = (choice(make_request(logprobs=1)).push(d).logprobs or [])[0]
    assert entry.logprob == entry.top[0][3] == -9999.0


def test_echo_comes_first_and_once() -> None:
    c = choice(make_request("xy", echo=True))
    first = c.push(delta("a"))
    assert (first.text, first.token_ids) == ("xya", list(b"xya"))
    assert c.push(delta("b")).text == "b"


def test_echo_joins_a_character_that_the_prompt_began() -> None:
    head, tail = "é".encode()
    c = choice(make_request((120, head), echo=True))
    assert c.push(delta([tail])).text == "xé"


def test_a_stop_string_in_the_echo_does_not_count() -> None:
    c = choice(make_request("xy", echo=True, stop=("y", "ya")))
    out = c.push(delta("ab", finish_reason="length"))
    assert (out.text, out.finish_reason) == ("xyab", "length")


def test_echo_with_logprobs() -> None:
    c = choice(make_request("xyz", echo=True, logprobs=1, prompt_logprobs=1))
    out = c.push(delta("a", logprobs=True, prompt_logprobs=[None, scored(121), scored(122)]))
    assert [e.logprob for e in out.logprobs or []] == [None, -1.21, -1.22, -0.97]
    assert len(out.logprobs or []) == len(out.token_ids) == 4


def test_prompt_logprobs_without_echo() -> None:
    c = choice(make_request("xy", prompt_logprobs=1))
    out = c.push(delta("a", prompt_logprobs=[None, scored(121)]))
    assert out.token_ids == [97]
    assert out.logprobs is None
    assert [e.token_id for e in out.prompt_logprobs or []] == [120, 121]


def test_prompt_alone() -> None:
    out = choice(make_request("xy", echo=True, max_tokens=0)).echo_only()
    assert (out.text, out.token_ids, out.finish_reason) == ("xy", [120, 121], "length")


def test_scored_prompt_alone() -> None:
    c = choice(make_request("xy", echo=True, max_tokens=0, prompt_logprobs=1, logprobs=1))
    out = c.push(delta(prompt_logprobs=[None, scored(121)], finish_reason="length"))
    assert (out.text, out.token_ids, out.finish_reason) == ("xy", [120, 121], "length")
    assert len(out.logprobs or []) == 2
    assert c.generated == 0


def test_an_error_has_no_echo() -> None:
    out = choice(make_request("xy", echo=True)).push(delta(finish_reason="error", error="the device failed"))
    assert (out.text, out.finish_reason, out.error) == ("", "error", "the device failed")


def test_an_abort_lets_held_text_go() -> None:
    c = choice(make_request(stop=("abc",)))
    c.push(delta("ab"))
    out = c.end("abort")
    assert (out.text, out.finish_reason, c.finished) == ("ab", "abort", True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_chunking_changes_nothing(size: int) -> None:
    text = "some words, é and 😀, then the END of it".encode()
    c = choice(make_request(stop=("END", "en the "), logprobs=0, echo=True))
    whole = Output(0, logprobs=[])
    for at in range(0, len(text), size):
        out = c.push(delta(list(text[at : at + size]), logprobs=True))
        whole.text += out.text
        whole.token_ids += out.token_ids
        assert whole.logprobs is not None
        whole.logprobs += out.logprobs or []
        if c.finished:
            break
    assert whole.text == "absome words, é and 😀, th"
    assert bytes(whole.token_ids) == b"ab" + text[: text.index(b"END")]
    assert len(whole.logprobs or []) == len(whole.token_ids) - 2


def test_pieces_not_taken_are_merged() -> None:
    o = outputs(make_request(logprobs=0))
    for text in "abc":
        o.push(0, delta(text, logprobs=True))
    o.push(0, delta("d", logprobs=True, finish_reason="length"))
    (out,) = o.take()
    assert (out.text, out.token_ids, out.finish_reason) == ("abcd", list(b"abcd"), "length")
    assert len(out.logprobs or []) == 4
    assert o.done
    assert o.take() == []


def test_usage_counts_the_prompt_once() -> None:
    o = outputs(make_request("abcd", n=2))
    o.push(0, delta("x", first_scheduled=2.0, cached_tokens=0))
    o.push(1, delta("yz", first_scheduled=2.0, cached_tokens=3))
    assert [out.usage for out in o.take()] == [Usage(4, 3, 0)] * 2


def test_usage_counts_the_stop() -> None:
    o = outputs(make_request(stop=("b",)))
    assert o.push(0, delta("abc"))
    (out,) = o.take()
    assert out.usage == Usage(2, 2, 0)


def test_a_finish_by_the_engine_is_not_reported_to_it() -> None:
    o = outputs(make_request(stop=("b",)))
    assert not o.push(0, delta("ab", finish_reason="length"))


def test_late_deltas_are_ignored() -> None:
    o = outputs(make_request(stop=("b",)))
    o.push(0, delta("ab"))
    o.take()
    assert not o.push(0, delta("cd", finish_reason="length"))
    assert o.take() == []


def test_queue_time_survives_merging() -> None:
    o = outputs(make_request(), arrival=5.0)
    o.push(0, delta("a", first_scheduled=5.25))
    o.push(0, delta("b"))
    assert o.take()[0].queue_time == 0.25


def test_empty_outputs_are_not_sent() -> None:
    o = outputs(make_request(stop=("abc",)))
    o.push(0, Delta("r#0"))
    assert o.take() == []


def test_end_leaves_finished_choices_alone() -> None:
    o = outputs(make_request(n=3))
    o.push(1, delta("x", finish_reason="length"))
    assert o.end("abort") == [0, 2]
    assert {out.index: out.finish_reason for out in o.take()} == {0: "abort", 1: "length", 2: "abort"}


def test_the_last_of_min_tokens_completes_no_stop_string() -> None:
    c = choice(make_request(min_tokens=3, stop=("b",)))
    out = c.push(delta("aabab"))
    assert (out.text, out.stop_reason) == ("aaba", "b")


@pytest.mark.parametrize(("reason", "finish"), [("abort", "abort"), ("error", "error"), ("length", "stop")])
def test_an_unfinished_character_completes_a_stop_only_where_the_text_ended_by_itself(reason: str, finish: str) -> None:
    c = choice(make_request(stop=("\ufffd",)))
    c.push(delta([0xC3]))
    out = c.end(reason)  # type: ignore[arg-type]
    assert out.finish_reason == finish

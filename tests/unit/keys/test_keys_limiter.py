"""Limits of a key, with a clock of the test's own."""

from __future__ import annotations

import contextlib
import math
import random

import pytest

from headrace.errors import RateLimited
from headrace.keys.limiter import Bucket, Limiter, Limits


def refused(limiter: Limiter, now: float) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        limiter.enter(now)
    return caught.value


def test_a_bucket_refills_evenly_and_never_holds_more_than_a_minute():
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.left(100.0) == 0
    assert bucket.left(101.5) == 1.5
    assert bucket.wait(10, 101.5) == pytest.approx(8.5)
    assert bucket.left(10_000.0) == 60
    assert bucket.wait(61, 10_000.0) == math.inf


def test_a_clock_that_goes_back_gives_nothing_twice():
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.left(110.0) == 10
    assert bucket.left(100.0) == 10
    assert bucket.left(110.0) == 10


def test_requests_a_minute():
    limiter = Limiter(Limits(requests_per_minute=2), 0.0)
    for _ in range(2):
        limiter.enter(0.0)
    error = refused(limiter, 0.0)
    assert (error.kind, error.retry_after) == ("requests", 30.0)
    assert "2 requests a minute of this key is reached: try again in 30s" in str(error)
    limiter.enter(30.0)
    assert limiter.active == 3


def test_a_refused_request_uses_nothing():
    limiter = Limiter(Limits(requests_per_minute=1, max_concurrency=1), 0.0)
    limiter.enter(0.0)
    for now in (60.0, 60.0, 61.0):
        assert refused(limiter, now).kind == "concurrency"
    limiter.leave()
    limiter.enter(61.0)


def test_tokens_are_charged_before_the_prompt_and_after_the_answer():
    limiter = Limiter(Limits(tokens_per_minute=600), 0.0)
    limiter.enter(0.0)
    limiter.admit_prompt(500, 0.0)
    with pytest.raises(RateLimited, match="try again in 10s"):
        limiter.admit_prompt(200, 0.0)
    limiter.charge(300, 0.0)
    # 200 below zero: the next request waits until one token is there again.
    error = refused(limiter, 0.0)
    assert (error.kind, error.retry_after) == ("tokens", pytest.approx(20.1))
    limiter.enter(20.1)


def test_a_prompt_larger_than_the_limit_never_passes():
    limiter = Limiter(Limits(tokens_per_minute=600), 0.0)
    with pytest.raises(RateLimited, match=r"needs 601 tokens, which is more than .* ever allows") as caught:
        limiter.admit_prompt(601, 0.0)
    assert caught.value.retry_after == math.inf


def test_headers_have_openais_form():
    limiter = Limiter(Limits(requests_per_minute=4, tokens_per_minute=6000), 0.0)
    limiter.enter(0.0)
    limiter.admit_prompt(50, 0.0)
    assert dict(limiter.headers(0.0)) == {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "15s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5950",
        "x-ratelimit-reset-tokens": "500ms",
    }
    limiter.charge(20_000, 0.0)
    headers = dict(limiter.headers(0.0))
    assert (headers["x-ratelimit-remaining-tokens"], headers["x-ratelimit-reset-tokens"]) == ("0", "3m21s")
    assert not [*Limiter(Limits(max_concurrency=1), 0.0).headers(0.0)]


def test_new_limits_keep_what_has_been_used_of_those_that_stay():
    limiter = Limiter(Limits(requests_per_minute=1, max_concurrency=5), 0.0)
    limiter.enter(0.0)
    limiter.set_limits(Limits(requests_per_minute=1, max_concurrency=9), 0.0)
    assert refused(limiter, 0.0).kind == "requests"
    limiter.set_limits(Limits(requests_per_minute=2), 0.0)
    limiter.enter(0.0)
    assert limiter.active == 2


def test_over_any_time_no_more_passes_than_the_limit():
    random_ = random.Random(3)
    limiter = Limiter(Limits(requests_per_minute=30), 0.0)
    now, passed = 0.0, list[float]()
    for _ in range(4000):
        now += random_.expovariate(2)
        with contextlib.suppress(RateLimited):
            limiter.enter(now)
            passed.append(now)
    for start in range(0, int(now), 60):
        # A full bucket, and what a minute refills.
        assert sum(start <= at < start + 60 for at in passed) <= 60
    assert len(passed) <= 30 + now / 2 + 1

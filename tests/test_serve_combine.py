"""What the service shares between requests: a pass through the network for many of them, and a cache of tasks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import serving
from metavib.serve.combine import Busy, Combiner
from metavib.serve.metrics import Metrics
from metavib.serve.service import Cache


def test_those_who_come_while_one_works_are_served_together() -> None:
    sizes, begun, go = [], threading.Event(), threading.Event()

    def work(items):
        sizes.append(len(items))
        begun.set()
        assert go.wait(10)
        return [2 * i if i != 13 else ValueError("unlucky") for i in items]

    combiner = Combiner(work, wait=0)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(combiner, 0)
        assert begun.wait(10)
        others = [pool.submit(combiner, i) for i in range(1, 20)]
        serving.until(lambda: len(combiner._row) == 19)
        go.set()
        assert first.result() == 0
        for i, other in enumerate(others, 1):
            if i == 13:
                with pytest.raises(ValueError, match="unlucky"):
                    other.result()
            else:
                assert other.result() == 2 * i
    assert sizes == [1, 19]


def test_the_first_waits_a_little_for_those_on_their_way() -> None:
    sizes = []

    def work(items):
        sizes.append(len(items))
        return items

    combiner = Combiner(work, wait=5.0)
    ready, both = threading.Barrier(2), threading.Barrier(2)

    def late():
        with combiner.coming():
            ready.wait()
            both.wait()
        return combiner(2)

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(late)
        ready.wait()
        one = pool.submit(combiner, 1)
        serving.until(lambda: len(combiner._row) == 1)
        both.wait()
        assert {one.result(), other.result()} == {1, 2}
    assert sizes in ([2], [1, 1])
    assert combiner(3) == 3  # nobody is coming, and nobody is waited for


def test_an_answer_that_does_not_come_is_given_up() -> None:
    release = threading.Event()
    combiner = Combiner(lambda items: [release.wait(10) for _ in items], patience=0.1, wait=0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(combiner, 0)
        serving.until(lambda: combiner._working)
        with pytest.raises(Busy):
            combiner(1)
        release.set()
        assert slow.result() is True
    assert combiner(2) is True


def test_an_error_of_the_work_is_everybodys_and_the_next_is_served() -> None:
    failures = [RuntimeError("down")]
    combiner = Combiner(
        lambda items: [failures.pop()] and (_ for _ in ()).throw(RuntimeError("down")) if failures else items
    )
    with pytest.raises(RuntimeError, match="down"):
        combiner(1)
    assert combiner(2) == 2


def test_the_cache_keeps_what_was_used_lately_and_no_more() -> None:
    cache = Cache(100, Metrics())
    for i in range(5):
        cache.put(str(i), i, 30)
        cache.get("0")
    assert cache.get("0") == 0 and cache.get("4") == 4 and cache.get("1") is None
    assert cache._used == 90
    cache.put("large", 1, 101)
    assert cache.get("large") is None and cache._used == 90
    cache.put("4", 5, 10)
    assert cache._used == 70

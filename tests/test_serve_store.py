"""The store keeps sums right: whatever is acknowledged counts once, on SQLite and on PostgreSQL alike."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.serve import postgres
from metavib.serve import store as stores
from metavib.serve.store import Change, Damaged, Done, Full, Next, Refused, Store, Stored, Unreachable

NAMES = ["sensor-17", "../../etc/passwd", "Käse 🧀", "a'; DROP TABLE metavib_tasks_1; --", "%2e%2e", "x" * 128]


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Postgres]:
    if postgres.binaries() is None:
        pytest.skip(postgres.MISSING)
    found = postgres.Postgres()
    yield found
    found.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    return request.getfixturevalue("cluster").url


@pytest.fixture
def store(url) -> Iterator[Store]:
    found = Store(url)
    for entry in found.listed(limit=10_000):
        found.change([delete(entry.name)])
    yield found
    found.close()


def number(stored: Stored | None) -> int:
    return 0 if stored is None else int(stored.state)


def add(name: str, amount: int, key: str, expected: str | None = None) -> Change:
    """A task whose state is a sum: the smallest thing that shows what is lost or counted twice."""

    def apply(old: Stored | None) -> Next:
        total = number(old) + amount
        return Next("model", str(total).encode(), {"points": total})

    return Change(name, key, f"add {amount}".encode(), expected, apply)


def delete(name: str, expected: str | None = None) -> Change:
    def apply(old: Stored | None) -> None:
        if old is None:
            raise Refused("no such task.", 404)

    return Change(name, f"delete {time.monotonic_ns()}", b"delete", expected, apply)


def done(outcome: Done | Exception) -> Done:
    assert isinstance(outcome, Done), outcome
    return outcome


def total(store: Store, name: str) -> int:
    return number(store.read([name]).get(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_an_opaque_string(store, name) -> None:
    done(store.change([add(name, 3, "a")])[0])
    assert total(store, name) == 3 and store.entries([name])[name].name == name
    assert [entry.name for entry in store.listed()] == [name] and store.count() == 1


def test_a_repeated_key_gets_the_first_answer_and_counts_once(store) -> None:
    first = done(store.change([add("t", 3, "a")])[0])
    done(store.change([add("t", 4, "b")])[0])
    again = done(store.change([add("t", 3, "a")])[0])
    assert again.repeated and again.answer == first.answer and first.answer["version"] == 1
    assert total(store, "t") == 7 and store.entries(["t"])["t"].version == 2


def test_a_key_is_of_one_request_of_one_task(store) -> None:
    done(store.change([add("t", 3, "a")])[0])
    other = store.change([add("t", 5, "a"), add("u", 5, "a")])
    assert isinstance(other[0], Refused) and other[0].status == 422
    assert done(other[1]).repeated is False
    assert total(store, "t") == 3 and total(store, "u") == 5


def test_a_group_is_made_in_order_and_each_change_has_its_own_outcome(store) -> None:
    outcomes = store.change(
        [add("t", 1, "a"), add("t", 2, "b"), add("t", 1, "a"), delete("u"), add("u", 9, "a"), delete("u")]
    )
    assert [o.answer["version"] for o in map(done, outcomes[:2])] == [1, 2]
    assert done(outcomes[2]).repeated and isinstance(outcomes[3], Refused)
    assert total(store, "t") == 3 and not store.entries(["u"])


def test_a_tag_is_never_that_of_two_states(store) -> None:
    """Not even when a task is deleted and made again, so a stale tag is always found out."""
    old = done(store.change([add("t", 3, "a")])[0]).answer["tag"]
    store.change([delete("t")])
    new = done(store.change([add("t", 3, "b")])[0]).answer["tag"]
    assert old != new
    stale = store.change([add("t", 1, "c", expected=old)])[0]
    assert isinstance(stale, Refused) and stale.status == 412
    done(store.change([add("t", 1, "d", expected=new)])[0])
    done(store.change([add("t", 1, "e", expected="*")])[0])
    missing = store.change([add("nothing", 1, "f", expected="*")])[0]
    assert isinstance(missing, Refused) and missing.status == 412
    assert total(store, "t") == 5


def test_deleting_forgets_the_keys_too(store) -> None:
    done(store.change([add("t", 3, "a")])[0])
    done(store.change([delete("t")])[0])
    assert not done(store.change([add("t", 3, "a")])[0]).repeated
    assert total(store, "t") == 3


def test_concurrent_changes_all_count(url, store) -> None:
    """Eight threads on two connections pools, as of two servers, all changing the same few tasks in groups."""
    other = Store(url)

    def work(thread: int) -> None:
        mine = (store, other)[thread % 2]
        for i in range(12):
            group = [add(f"t{j}", 1, f"{thread}-{i}") for j in ((0, 1, 2) if thread % 3 else (2, 1, 0))]
            for outcome in mine.change(group):
                assert not done(outcome).repeated

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert [total(store, f"t{j}") for j in range(3)] == [96, 96, 96]
    assert [entry.version for entry in store.listed()] == [96, 96, 96]
    other.close()


def test_two_servers_may_make_the_same_task(url, store) -> None:
    other, barrier = Store(url), threading.Barrier(2)

    def work(mine: Store, key: str) -> None:
        for i in range(10):
            barrier.wait()
            done(mine.change([add(f"t{i}", 1, key)])[0])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (store, other), ("a", "b")))
    assert [total(store, f"t{i}") for i in range(10)] == [2] * 10
    other.close()


def test_listing_pages_through_all_tasks_once(store) -> None:
    names = [f"task {i:03d}" for i in range(25)]
    store.change([add(name, 1, "a") for name in names])
    found, after = [], ""
    while page := store.listed(after=after, limit=7):
        found += [entry.name for entry in page]
        after = found[-1]
    assert sorted(found) == names
    assert store.listed(model="another") == []


def test_a_damaged_row_is_found_out_and_can_be_replaced(url, store) -> None:
    store.change([add("t", 3, "a"), add("u", 4, "a")])
    with store._writing.begin() as connection:
        connection.exec_driver_sql("UPDATE metavib_tasks_1 SET version = 7 WHERE name = 't'")
    with pytest.raises(Damaged, match="not what was written"):
        total(store, "t")
    outcomes = store.change([add("t", 1, "b"), add("u", 1, "b")])
    assert isinstance(outcomes[0], Damaged) and total(store, "u") == 5
    whole = Change("t", "c", b"", "*", lambda old: Next("model", b"10", {"points": 10}))
    assert done(store.change([whole])[0]).answer["version"] == 8
    assert total(store, "t") == 10
    with store._writing.begin() as connection:
        connection.exec_driver_sql("UPDATE metavib_tasks_1 SET summary = 'nonsense' WHERE name = 't'")
    assert store.entries(["t"])["t"].summary == {}
    done(store.change([delete("t")])[0])


@pytest.mark.parametrize("jump", [-1e9, 1e9, 10 * 365 * 86400.0])
def test_keys_survive_a_clock_that_jumps(store, monkeypatch, jump) -> None:
    """Age alone never forgets a key: the last thousand changes of a task are known whatever the clock says."""
    real = time.time
    done(store.change([add("t", 1, "first")])[0])
    monkeypatch.setattr(stores.time, "time", lambda: real() + jump)
    store.change([add("t", 1, f"k{i}") for i in range(stores.SWEEP * 2)])
    assert done(store.change([add("t", 1, "first")])[0]).repeated
    assert total(store, "t") == 1 + stores.SWEEP * 2


def test_old_keys_are_forgotten_in_the_end(store, monkeypatch) -> None:
    monkeypatch.setattr(stores, "KEYS_KEPT", 50)
    store.change([add("t", 1, "first")])
    store.change([add("t", 1, f"k{i}") for i in range(300)])
    assert done(store.change([add("t", 1, "first")])[0]).repeated  # still young
    real = time.time
    monkeypatch.setattr(stores.time, "time", lambda: real() + 2 * stores.KEYS_SECONDS)
    store.change([add("t", 1, f"l{i}") for i in range(100)])
    with store._reading.connect() as connection:
        left = connection.exec_driver_sql("SELECT count(*) FROM metavib_keys_1").scalar()
    assert left is not None and left < 150


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.lists(
        st.lists(st.tuples(st.sampled_from("tu"), st.integers(1, 9), st.integers(0, 5), st.booleans()), max_size=6),
        max_size=6,
    )
)
def test_a_store_is_a_dictionary_with_a_memory_for_keys(tmp_path_factory, groups) -> None:
    """Against the obvious model in plain Python: any sequence of groups, repeated keys and deletions."""
    store = Store(str(tmp_path_factory.mktemp("store") / "t.db"))
    sums: dict[str, int] = {}
    keys: dict[str, dict[str, int]] = {}
    for group in groups:
        outcomes = store.change([delete(n) if gone else add(n, k, str(key)) for n, k, key, gone in group])
        for (name, amount, key, gone), outcome in zip(group, outcomes, strict=True):
            known = keys.get(name, {})
            if gone:
                assert isinstance(outcome, Refused) == (name not in sums)
                sums.pop(name, None), keys.pop(name, None)
            elif str(key) in known:
                same = known[str(key)] == amount
                assert done(outcome).repeated if same else isinstance(outcome, Refused)
            else:
                assert not done(outcome).repeated
                sums[name] = sums.get(name, 0) + amount
                keys.setdefault(name, {})[str(key)] = amount
        assert {e.name: total(store, e.name) for e in store.listed()} == sums
    store.close()


# Faults -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing_and_is_said(tmp_path) -> None:
    store = Store(f"{tmp_path}/tasks.db")
    store.change([add("t", 3, "a")])

    def large(old: Stored | None) -> Next:
        return Next("model", os.urandom(2**20), {})

    with store._writing.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    for _ in range(2):
        with store._writing.connect() as connection:  # the connection that will be used next
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.rollback()
        with pytest.raises(Full, match="no room left"):
            store.change([add("t", 1, "b"), Change("u", "a", b"", None, large)])
    assert total(store, "t") == 3 and store.count() == 1
    with store._writing.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert not done(store.change([add("t", 1, "b")])[0]).repeated
    assert total(store, "t") == 4
    store.close()


def test_another_program_that_holds_the_lock_is_waited_for_and_then_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stores, "WAIT", 0.2)
    store = Store(f"{tmp_path}/tasks.db")
    other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unreachable, match="ask again"):
        store.change([add("t", 1, "a")])
    assert store.count() == 0  # reading goes on meanwhile
    other.execute("COMMIT")
    done(store.change([add("t", 1, "a")])[0])
    other.close()
    store.close()


def test_postgresql_that_is_gone_is_said_and_found_again(cluster) -> None:
    """Connections broken under the store are made anew, and the repeated transaction counts once."""
    store = Store(cluster.url)
    name = f"gone-{time.monotonic_ns()}"
    done(store.change([add(name, 1, "a")])[0])
    cluster.stop("immediate")
    for ask in (lambda: store.change([add(name, 1, "b")]), lambda: store.read([name]), store.check):
        with pytest.raises(Unreachable):
            ask()
    cluster.start()
    assert total(store, name) == 1
    assert not done(store.change([add(name, 1, "b")])[0]).repeated
    assert total(store, name) == 2
    store.close()


def test_a_connection_lost_while_committing_is_no_reason_to_count_twice(cluster) -> None:
    """The commit arrives and its answer does not: the transaction is repeated, and finds its own keys."""
    store = Store(cluster.url)
    name = f"commit-{time.monotonic_ns()}"
    real, lost = store._writing.dialect.do_commit, []

    def commit(connection) -> None:
        real(connection)
        if not lost:
            lost.append(True)
            connection.driver_connection.close()
            raise store._writing.dialect.dbapi.OperationalError("the connection is closed")

    store._writing.dialect.do_commit = commit  # type: ignore[method-assign]
    outcome = done(store.change([add(name, 5, "a")])[0])
    assert lost and outcome.repeated and total(store, name) == 5
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:secret@h/d", "SQLite or PostgreSQL, not in mysql"),
        ("sqlite://", "lost with the server"),
        ("nonsense://u:secret@h", "SQLite or PostgreSQL, not in nonsense"),
        ("postgresql://u:secret@h:port/d", "no address of a store"),
    ],
)
def test_addresses_that_mean_nothing_are_refused_without_their_passwords(url, message) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Store(url)
    assert "secret" not in str(error.value)


def test_the_password_is_not_shown(cluster) -> None:
    store = Store(cluster.url.replace("metavib@", "metavib:secret@"))
    assert "secret" not in repr(store) and "***" in repr(store)
    store.close()

r"""Where tasks are kept: SQLite or PostgreSQL, so that nothing acknowledged is lost and nothing is counted twice.

What is known of a task is a sum over its points, so an update that is counted twice is simply wrong, and so is one that
was acknowledged and then lost. Three rules keep the sums right.

1. **One transaction.** A change writes the new state, the next version and the *key* of the request together, after
   locking the row of its task. Concurrent changes of one task follow one another, in whichever process they are made.
2. **A key counts once.** A request that comes again with the same key gets the first answer again and changes
   nothing. The store itself repeats a transaction whose connection broke while it was committed, for the same reason.
3. **A version never returns.** A task has a random number for its whole life, and a version that every change raises;
   together they are its tag (the ETag of HTTP), which is therefore never that of two different states.

Keys are forgotten when they are both more than a day old and more than a thousand changes behind: were age alone to
decide, a clock that jumps forward would forget a key that may still be asked for. Nothing else depends on the clock.

The store knows nothing of models. States are bytes with a checksum, and what a change does to them is a function that
the caller hands over.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, final

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError, TimeoutError

KEYS_KEPT = 1000  # changes of a task whose keys are never forgotten
KEYS_SECONDS = 24 * 3600.0  # and younger keys are not forgotten either
SWEEP = 100  # a task's old keys are looked for at every so many of its changes
ATTEMPTS = 4  # of a transaction whose connection broke, or that waited in a circle with another
CROSSED = ("40001", "40P01")  # PostgreSQL's words for two transactions in each other's way
DISK_FULL = "53100"
WAIT = 5.0  # seconds for a connection, or for another's lock

_METADATA = sql.MetaData()
# The 1 is the version of this layout: another one would have tables of its own, and read these once.
_TASKS = sql.Table(
    "metavib_tasks_1",
    _METADATA,
    sql.Column("id", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("name", sql.String(512), nullable=False, unique=True),
    sql.Column("model", sql.String(64), nullable=False, index=True),
    sql.Column("version", sql.BigInteger, nullable=False),
    sql.Column("summary", sql.Text, nullable=False),
    sql.Column("checksum", sql.LargeBinary(32), nullable=False),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
_KEYS = sql.Table(
    "metavib_keys_1",
    _METADATA,
    sql.Column("task", sql.BigInteger, sql.ForeignKey(_TASKS.c.id, ondelete="CASCADE"), primary_key=True),
    sql.Column("key", sql.String(255), primary_key=True),
    sql.Column("version", sql.BigInteger, nullable=False),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("asked", sql.LargeBinary(32), nullable=False),
    sql.Column("answer", sql.Text, nullable=False),
)


class StoreError(Exception):
    """The store could not do what was asked; nothing has changed, or a request with the same key will find out."""


class Unreachable(StoreError):
    """The database does not answer, for now."""


class Full(StoreError):
    """There is no room left where the tasks are kept."""


class Damaged(StoreError):
    """What is stored of a task is not what was written."""


class Refused(Exception):
    """A change that the task's present state does not allow.

    Args:
        reason: a sentence for whoever asked.
        status: the HTTP status that says the same.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Entry(NamedTuple):
    """A task as the list of tasks shows it, without its state.

    Args:
        id: random, drawn when the task was made; another task of the same name later has another one.
        name: what its user calls it, an opaque string.
        model: the fingerprint of the model it belongs to.
        version: how many changes made it what it is.
        summary: what was written beside the state, for people.
    """

    id: int
    name: str
    model: str
    version: int
    summary: dict[str, Any]

    @property
    def tag(self) -> str:
        """What tells this state of this task from every other: the ETag of HTTP."""
        return f'"{self.id:x}-{self.version}"'


class Stored(NamedTuple):
    """A task with what is stored of it.

    Args:
        entry: the task.
        content: its state, as it was read.
        sound: whether that is what was once written.
        value: the state as the caller understands it, where an earlier change of the same transaction left it.
    """

    entry: Entry
    content: bytes
    sound: bool = True
    value: Any = None

    @property
    def state(self) -> bytes:
        """The state; `Damaged` is raised where it is not the one that was written."""
        if not self.sound:
            raise Damaged(
                "what is stored of this task is not what was written: the database was damaged. Replace the task by an "
                "export of it (PUT its file with If-Match: *), or delete it."
            )
        return self.content


class Next(NamedTuple):
    """What a change makes of a task.

    Args:
        model: the fingerprint of the model the state belongs to.
        state: the new state.
        summary: what the list of tasks says of it.
        value: the state as the caller understands it, for whoever comes next.
    """

    model: str
    state: bytes
    summary: dict[str, Any]
    value: Any = None


class Change(NamedTuple):
    """Something to be done to one task.

    Args:
        name: of the task.
        key: what tells this request from all others; the same again when the request is repeated.
        asked: a digest of the request, by which a key that is used for two different requests is found out.
        expected: the tag the task must have, `"*"` if it must only exist, or None if all is the same.
        apply: makes the new state from the old one, which is None where there is no such task; it returns None to
            delete the task, and raises `Refused` to leave it alone. It may be called more than once, and must not
            depend on that.
    """

    name: str
    key: str
    asked: bytes
    expected: str | None
    apply: Callable[[Stored | None], Next | None]


class Done(NamedTuple):
    """A change that is on disk.

    Args:
        answer: name, version, tag and summary of the task as the change left it.
        repeated: whether it had been made before, by an earlier request with the same key.
        value: what the change made of the task, as the caller understands it; None for one that was made before.
    """

    answer: dict[str, Any]
    repeated: bool = False
    value: Any = None


@final
class Store:
    """Tasks in a database.

    Args:
        url: `sqlite:///tasks.db`, the path of an SQLite file, or `postgresql://user@host/database`.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp() + "/tasks.db")
        >>> def first(old):
        ...     return Next("model", b"state", {"points": 1})
        >>> change = Change("sensor-17", key="a", asked=b"", expected=None, apply=first)
        >>> store.change([change])[0].answer["version"], store.change([change])[0].repeated
        (1, True)
        >>> store.read(["sensor-17"])["sensor-17"].state
        b'state'
        >>> store.close()
    """

    def __init__(self, url: str) -> None:
        self.url = _url(url)
        self._locks = self.url.get_backend_name() != "sqlite"
        connect = _postgresql if self._locks else _sqlite
        self._writing, self._reading = connect(self.url), connect(self.url, isolation_level="AUTOCOMMIT")
        if not self._locks:  # the lock of the whole file first: what is read then is still so when it is written
            event.listen(self._writing, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        with _translated():
            try:
                _METADATA.create_all(self._writing)
            except (IntegrityError, ProgrammingError):  # another server made the same tables at the same moment
                _METADATA.create_all(self._writing)

    def __repr__(self) -> str:
        return f"Store({self.url.render_as_string(hide_password=True)!r})"

    def close(self) -> None:
        """Closes all connections."""
        self._writing.dispose()
        self._reading.dispose()

    # What is there

    def entries(self, names: Sequence[str]) -> dict[str, Entry]:
        """Those of the named tasks that exist, as they are now, without their states."""
        return {entry.name: entry for entry in map(_entry, self._read(_ENTRIES, {"names": list(names)}))}

    def read(self, names: Sequence[str]) -> dict[str, Stored]:
        """Those of the named tasks that exist, with their states."""
        return {row.name: _stored(row) for row in self._read(_STATES, {"names": list(names)})}

    def listed(self, *, after: str = "", limit: int = 100, model: str | None = None) -> list[Entry]:
        """Tasks in the order of their names, beginning after one of them; those of one model, if it is given."""
        query = sql.select(*_ENTRY).where(_TASKS.c.name > after).order_by(_TASKS.c.name).limit(limit)
        if model is not None:
            query = query.where(_TASKS.c.model == model)
        return [_entry(row) for row in self._read(query)]

    def count(self) -> int:
        """How many tasks there are."""
        return int(self._read(sql.select(sql.func.count()).select_from(_TASKS))[0][0])

    def check(self) -> None:
        """Asks the database for an answer, and raises `Unreachable` where none comes."""
        self._read(sql.select(sql.literal(1)))

    def _read(self, query: sql.Select[Any], values: dict[str, Any] | None = None) -> list[Any]:
        with _translated():
            for attempt in range(ATTEMPTS):
                try:
                    with self._reading.connect() as connection:
                        return list(connection.execute(query, values))
                except DBAPIError as error:
                    if not error.connection_invalidated or attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError("the last attempt returns or raises")

    # What is done to it

    def change(self, changes: Sequence[Change]) -> list[Done | Exception]:
        """Makes changes in one transaction, in their order; each has an outcome of its own.

        A change that is refused leaves the others as they are: what came of it is the exception. Where the transaction
        itself fails, none is made, and `StoreError` is raised.
        """
        with _translated():
            for attempt in range(ATTEMPTS):
                try:
                    with self._writing.begin() as connection:
                        return self._changed(connection, changes)
                except DBAPIError as error:
                    if attempt == ATTEMPTS - 1 or not _again(error):
                        raise
                    time.sleep(0.02 * 2**attempt * (1 + secrets.randbelow(100) / 100))
        raise AssertionError("the last attempt returns or raises")

    def _changed(self, connection: Connection, changes: Sequence[Change]) -> list[Done | Exception]:
        """The body of a transaction: lock, work out in memory, write each task once."""
        rows = self._locked(connection, {c.name for c in changes})
        before = dict(rows)
        keys = self._known(connection, [(rows[c.name].entry.id, c.key) for c in changes if c.name in rows])
        fresh: dict[tuple[int, str], dict[str, Any]] = {}
        outcomes: list[Done | Exception] = []
        for change in changes:
            try:
                outcomes.append(self._one(change, rows, keys, fresh))
            except Exception as error:  # of this change alone; what it is, its asker is told
                outcomes.append(error)
        self._write(connection, before, rows, fresh)
        return outcomes

    def _locked(self, connection: Connection, names: set[str]) -> dict[str, Stored]:
        # In one order everywhere, so that no two servers wait for each other.
        query = _STATES.order_by(_TASKS.c.id).with_for_update() if self._locks else _STATES
        return {row.name: _stored(row) for row in connection.execute(query, {"names": list(names)})}

    def _known(self, connection: Connection, wanted: list[tuple[int, str]]) -> dict[tuple[int, str], Any]:
        if not wanted:
            return {}
        c = _KEYS.c
        query = sql.select(_KEYS).where(sql.tuple_(c.task, c.key).in_(wanted))
        return {(row.task, row.key): (row.asked, json.loads(row.answer)) for row in connection.execute(query)}

    def _one(
        self,
        change: Change,
        rows: dict[str, Stored],
        keys: dict[tuple[int, str], Any],
        fresh: dict[tuple[int, str], dict[str, Any]],
    ) -> Done:
        old = rows.get(change.name)
        if old is not None and (old.entry.id, change.key) in keys:
            asked, answer = keys[old.entry.id, change.key]
            if asked != change.asked:
                raise Refused(
                    "this idempotency key came with another request on this task before: a key names one request, "
                    "and comes again only when that request is repeated.",
                    422,
                )
            return Done(answer, repeated=True)
        _check_tag(change, old)
        made = change.apply(old)
        if made is None:
            assert old is not None
            del rows[change.name]
            return Done({"task": change.name})
        id_, version = (secrets.randbits(62), 1) if old is None else (old.entry.id, old.entry.version + 1)
        entry = Entry(id_, change.name, made.model, version, made.summary)
        rows[change.name] = Stored(entry, made.state, value=made.value)
        answer = {"task": entry.name, "version": version, "tag": entry.tag, "model": made.model, **made.summary}
        keys[id_, change.key] = (change.asked, answer)
        fresh[id_, change.key] = {"version": version, "at": time.time(), "asked": change.asked, "answer": answer}
        return Done(answer, value=made.value)

    def _write(
        self,
        connection: Connection,
        before: dict[str, Stored],
        after: dict[str, Stored],
        fresh: dict[tuple[int, str], dict[str, Any]],
    ) -> None:
        gone = [
            old.entry.id for name, old in before.items() if name not in after or after[name].entry.id != old.entry.id
        ]
        if gone:
            connection.execute(sql.delete(_KEYS).where(_KEYS.c.task.in_(gone)))
            connection.execute(sql.delete(_TASKS).where(_TASKS.c.id.in_(gone)))
        made, changed = [], []
        for name in sorted(after):
            new, old = after[name], before.get(name)
            if old is None or old.entry.id != new.entry.id:
                made.append(_columns(new))
            elif old.entry.version != new.entry.version:
                changed.append({f"new_{k}": v for k, v in _columns(new).items()})
        if made:
            connection.execute(sql.insert(_TASKS), made)
        if changed:
            values: dict[str, Any] = {
                k: sql.bindparam(f"new_{k}") for k in ("model", "version", "summary", "checksum", "state")
            }
            connection.execute(sql.update(_TASKS).where(_TASKS.c.id == sql.bindparam("new_id")).values(values), changed)
        alive = {new.entry.id: new.entry.version for new in after.values()}
        kept = [
            {"task": task, "key": key, **row, "answer": json.dumps(row["answer"])}
            for (task, key), row in fresh.items()
            if task in alive
        ]
        if kept:
            connection.execute(sql.insert(_KEYS), kept)
        for task in {row["task"] for row in kept if row["version"] % SWEEP == 0}:
            old_keys = (_KEYS.c.task == task) & (_KEYS.c.version <= alive[task] - KEYS_KEPT)
            connection.execute(sql.delete(_KEYS).where(old_keys & (_KEYS.c.at < time.time() - KEYS_SECONDS)))


_ENTRY = (_TASKS.c.id, _TASKS.c.name, _TASKS.c.model, _TASKS.c.version, _TASKS.c.summary)
_NAMED = _TASKS.c.name.in_(sql.bindparam("names", expanding=True))
_ENTRIES = sql.select(*_ENTRY).where(_NAMED)
_STATES = sql.select(_TASKS).where(_NAMED)


def _entry(row: Any) -> Entry:
    try:
        summary = json.loads(row.summary)
    except ValueError:
        summary = {}
    return Entry(row.id, row.name, row.model, row.version, summary if isinstance(summary, dict) else {})


def _stored(row: Any) -> Stored:
    entry, content = _entry(row), bytes(row.state)
    return Stored(entry, content, sound=_checksum(entry, content) == bytes(row.checksum))


def _columns(stored: Stored) -> dict[str, Any]:
    entry = stored.entry._asdict() | {"summary": json.dumps(stored.entry.summary)}
    return {**entry, "checksum": _checksum(stored.entry, stored.content), "state": stored.content}


def _checksum(entry: Entry, content: bytes) -> bytes:
    """Of the whole row but its summary, so that a state in another task's row, or of another version, is found out."""
    digest = sha256(f"{entry.id} {entry.version} {entry.model} {len(entry.name)} {entry.name} ".encode())
    digest.update(content)
    return digest.digest()


def _check_tag(change: Change, old: Stored | None) -> None:
    if change.expected is None or (old is not None and change.expected in ("*", old.entry.tag)):
        return
    if old is None:
        raise Refused("there is no such task, and If-Match asks for one.", 412)
    raise Refused(
        f"the task is at version {old.entry.version}, which is not the one that If-Match names: it has changed since. "
        "Read it again and decide anew.",
        412,
    )


# The two databases


def _url(text: str) -> URL:
    if "://" not in text:
        text = f"sqlite:///{text}"
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (SQLAlchemyError, ValueError) as error:
        raise ValueError(f"{_hidden(text)} is no address of a store; {_EXPECTED}.") from error
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ValueError(f"tasks are kept in SQLite or PostgreSQL, not in {backend}; {_EXPECTED}.")
    if not url.database or url.database == ":memory:":
        raise ValueError(f"tasks in memory would be lost with the server; {_EXPECTED}.")
    Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    return url


_EXPECTED = "expected sqlite:///FILE, the path of an SQLite file, or postgresql://USER:PASSWORD@HOST/DATABASE"


def _hidden(text: str) -> str:
    """An address that could not be read, without what may be a password in it."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else text


def _sqlite(url: URL, **options: Any) -> Engine:
    engine = sql.create_engine(url, connect_args={"timeout": WAIT}, pool_size=8, max_overflow=56, **options)

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so, not where the driver guesses
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _postgresql(url: URL, **options: Any) -> Engine:
    milliseconds = round(1000 * WAIT)
    settings = f"-c lock_timeout={milliseconds} -c statement_timeout={2 * milliseconds}"
    arguments = {"connect_timeout": round(WAIT), "options": settings, "application_name": "metavib serve"}
    pool = {"pool_size": 4, "max_overflow": 12, "pool_timeout": WAIT}
    try:
        return sql.create_engine(url, connect_args=arguments, **pool, **options)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("PostgreSQL is reached through psycopg: pip install 'metavib[serve]'.") from error


def _again(error: DBAPIError) -> bool:
    """Whether a transaction failed for a reason that repeating it removes.

    Its connection broke (the key of each change tells whether it was committed), two servers waited for each other, or
    both made a task of the same name.
    """
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or isinstance(error, IntegrityError) or state in CROSSED


@contextmanager
def _translated() -> Iterator[None]:
    """The driver's errors as ours; what is a mistake of this program stays what it is."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise
    except (DBAPIError, TimeoutError) as error:
        cause = getattr(error, "orig", error)
        if getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == DISK_FULL:
            raise Full("there is no room left where the tasks are kept; nothing was changed.") from error
        raise Unreachable("the store does not answer, or is busy; ask again in a moment.") from error

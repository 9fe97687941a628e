"""Tasks from a table: each its own rows, never the same row twice, whatever the sizes and ids."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from metavib.objective import vib
from metavib.random import seeded
from metavib.tasks.table import TableTasks, split_tasks
from metavib.tasks.task import select
from metavib.training import build


def table(counts, *, seed=0):
    """Rows that say what they are: y = 1000 * task + row number, x = (task, row); in random order."""
    ids = np.repeat(np.arange(len(counts)), counts)
    row = np.concatenate([np.arange(c) for c in counts])
    order = np.random.default_rng(seed).permutation(len(ids))
    x = np.stack([ids, row], 1).astype(float)
    return x[order], (1000.0 * ids + row)[order], ids[order]


@given(
    counts=st.lists(st.integers(2, 9), min_size=1, max_size=5),
    shots=st.integers(0, 6),
    queries=st.integers(1, 6),
    ragged=st.booleans(),
    seed=st.integers(0, 99),
)
def test_support_and_query_are_disjoint_rows_of_one_task(counts, shots, queries, ragged, seed):
    """Every point is a row of its own task, no row twice; as many as asked for, as far as the rows go."""
    source = TableTasks(*table(counts, seed=seed), shots=shots, queries=queries, min_shots=0 if ragged else None)
    tasks = source.sample((3, 2), seeded(seed))
    assert tasks.support.x.shape == (3, 2, shots, 2) and tasks.query.y.shape == (3, 2, queries)
    for index in np.ndindex(3, 2):
        one = select(tasks, index)
        y = torch.cat([side.y[side.mask] for side in one])
        assert len(set(y.tolist())) == len(y)
        task = int(y[0] // 1000)
        assert all(int(v // 1000) == task and v % 1000 < counts[task] for v in y)
        for side in one:
            assert torch.equal(1000 * side.x[:, 0] + side.x[:, 1], side.y)  # x and y stay together
            assert not side.y[~side.mask].any() and not side.x[~side.mask].any()
            assert torch.equal(side.mask, side.mask.sort(descending=True).values)  # real points first
        n, v = int(one.support.mask.sum()), int(one.query.mask.sum())
        if not ragged:
            assert n == min(shots, counts[task] - 1)
        assert v == min(queries, counts[task] - n) >= 1


def test_all_tasks_and_all_rows_take_part_on_both_sides():
    source = TableTasks(*table([2, 5, 3]), shots=2, queries=2)
    tasks = source.sample((400,), seeded(0))
    every = {1000 * t + r for t, c in enumerate([2, 5, 3]) for r in range(c)}
    for side in tasks:
        assert set(side.y[side.mask].int().tolist()) == every
    drawn = (tasks.query.y[:, 0] // 1000).int().bincount()
    assert (drawn - 400 / 3).abs().max() < 45  # uniform over tasks, not over rows


def test_min_shots_draws_every_number_between():
    source = TableTasks(*table([20]), shots=4, queries=3, min_shots=1)
    counts = source.sample((300,), seeded(0)).support.mask.sum(-1)
    assert set(counts.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "ids",
    [["b", "b", "a", "a", "a"], [7, 7, -3, -3, -3], [2.5, 2.5, 0.1, 0.1, 0.1], [True, True, False, False, False]],
    ids=["strings", "ints", "floats", "bools"],
)
def test_ids_may_be_of_any_kind(ids):
    """Tasks are numbered in the order of their sorted ids, and keep their names."""
    source = TableTasks(np.arange(5.0), np.arange(5.0), ids, shots=1, queries=4)
    assert len(source) == 2 and source.names.tolist() == sorted(set(ids))
    for number, rows in ((0, {2.0, 3.0, 4.0}), (1, {0.0, 1.0})):
        task = source.split(torch.tensor(number), seeded(0))
        found = torch.cat([side.y[side.mask] for side in task]).tolist()
        assert set(found) == rows and len(found) == len(rows)


def test_the_stream_alone_decides():
    source = TableTasks(*table([5, 6]), shots=2, queries=2)
    a, b, c = (source.sample((8,), seeded(s)) for s in (1, 1, 2))
    assert torch.equal(a.support.y, b.support.y) and not torch.equal(a.support.y, c.support.y)


def test_one_task_is_a_table_too():
    source = TableTasks(np.arange(4.0), np.arange(4.0), np.zeros(4), shots=3, queries=5)
    task = source.sample((), seeded(0))
    assert len(source) == 1 and int(task.query.mask.sum()) == 1 and int(task.support.mask.sum()) == 3


def test_a_task_with_one_row_is_refused_by_name():
    with pytest.raises(ValueError, match=r"at least two rows.*2 of 3 have one: a, c\."):
        TableTasks(np.arange(4.0), np.arange(4.0), ["a", "b", "b", "c"])
    with pytest.raises(ValueError, match=r"7 of 7 have one: 0, 1, 2, 3, 4 \.\.\."):
        TableTasks(np.arange(7.0), np.arange(7.0), np.arange(7))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "y"])
def test_nan_and_infinity_are_refused_with_their_number(bad, where):
    columns = {"x": np.arange(4.0), "y": np.arange(4.0)}
    columns[where][1] = bad
    with pytest.raises(ValueError, match=f"table: {where} has 1 NaN or infinite value among 4"):
        TableTasks(columns["x"], columns["y"], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("x", "y", "ids", "message"),
    [
        (np.zeros(3), np.zeros(4), [0, 0, 1, 1], r"got x \(3,\) and y \(4,\)"),
        (np.zeros(4), np.zeros(4), [0, 0, 1], r"one a row, \(4,\); got \(3,\)"),
        (np.zeros(4), np.zeros(4), [[0], [0], [1], [1]], r"one a row"),
        (np.zeros((2, 2)), np.zeros((2, 2)), [0, 0], r"y must be \(rows,\); got \(2, 2\)"),
        (np.zeros(4), 3.0, [0, 0, 1, 1], "got a scalar"),
    ],
)
def test_columns_that_do_not_belong_together_are_refused(x, y, ids, message):
    with pytest.raises(ValueError, match=message):
        TableTasks(x, y, ids)


@pytest.mark.parametrize("ids", [[0.0, 0.0, np.nan, np.nan], ["a", "a", None, None]])
def test_rows_without_a_task_do_not_become_one(ids):
    for use in (lambda: TableTasks(np.zeros(4), np.zeros(4), ids), lambda: split_tasks(ids)):
        with pytest.raises(ValueError, match="2 of 4 rows have no task id"):
            use()


@pytest.mark.parametrize("sizes", [{"shots": -1}, {"queries": 0}, {"shots": 2, "min_shots": 3}])
def test_sizes_no_task_can_have_are_refused(sizes):
    with pytest.raises(ValueError, match="shots"):
        TableTasks(np.arange(4.0), np.arange(4.0), [0, 0, 1, 1], **sizes)


@given(
    counts=st.lists(st.integers(1, 5), min_size=3, max_size=30),
    fractions=st.sampled_from([(0.7, 0.15, 0.15), (0.8, 0.1, 0.1), (1.0, 1.0, 1.0), (0.98, 0.01, 0.01)]),
    seed=st.integers(0, 9),
)
def test_a_division_by_task_shares_no_task_and_loses_no_row(counts, fractions, seed):
    ids = np.random.default_rng(seed).permutation(np.repeat([f"t{i}" for i in range(len(counts))], counts))
    parts = split_tasks(ids, fractions=fractions, seed=seed)
    assert np.array_equal(np.sum(parts, 0), np.ones(len(ids)))
    sets = [set(ids[part]) for part in parts]
    assert sum(map(len, sets)) == len(counts) and all(sets)
    share = np.array(fractions) / sum(fractions) * len(counts)
    assert all(abs(len(s) - f) <= 2 for s, f in zip(sets, share, strict=True))


def test_the_seed_decides_the_division():
    ids = np.arange(40).repeat(2)
    first, again, other = (split_tasks(ids, seed=s)[0] for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_an_id_column_with_one_task_is_refused():
    with pytest.raises(ValueError, match=r"needs at least 3 tasks; the id column has 1 \(x\)\. Is it the right column"):
        split_tasks(["x"] * 10)


@pytest.mark.parametrize("sites", ["exact", "full", "general"])
def test_gp_vib_learns_from_a_table(sites):
    """Ragged tasks, y = a_task * x: on tasks never seen, the bound rises and the error is far below that of zero."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(40), rng.integers(4, 20, 40))
    slopes = rng.normal(size=40)
    x = rng.uniform(-2, 2, len(ids))
    y = slopes[ids] * x
    train, _, test = split_tasks(ids)
    source, held_out = (TableTasks(x[p], y[p], ids[p], shots=4, queries=10, min_shots=1) for p in (train, test))
    model = build.model(tiny.sinusoid(model__sites=sites, model__noise=0.02, model__widths=[20, 20]))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    tasks = held_out.sample((200,), seeded(1)).to(torch.float32)
    before = vib(model, tasks, beta=1.0).value.mean().detach()
    stream = seeded(0)
    for _ in range(100):
        bound = vib(model, source.sample((8,), stream).to(torch.float32), beta=1.0)
        optimiser.zero_grad()
        (-bound.value.mean()).backward()
        optimiser.step()
    with torch.no_grad():
        mean, _ = model.likelihood.predict(model(tasks))
        query = tasks.query
        assert vib(model, tasks, beta=1.0).value.mean() > before
        assert (mean - query.y)[query.mask].square().mean() < 0.4 * query.y[query.mask].square().mean()

"""Differences in standard errors: against the formula written out, and in the cases that decide what a cell says."""

from math import inf, isclose, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction import compare
from reproduction.compare import Cell, Estimate, difference, over_trainings, published

numbers = st.floats(-100, 100)
spreads = st.floats(0.01, 10)


@given(st.lists(numbers, min_size=2, max_size=6), numbers, spreads, st.integers(2, 10))
def test_with_several_trainings_it_is_the_difference_over_the_two_errors(ours, mean, sd, n):
    """SD with n - 1 over the square root of n on each side, added in squares."""
    centre = sum(ours) / len(ours)
    variance = sum((x - centre) ** 2 for x in ours) / (len(ours) - 1)
    expected = (centre - mean) / sqrt(variance / len(ours) + sd**2 / n)
    assert isclose(
        difference(over_trainings(ours), published(mean, sd=sd, trainings=n)), expected, rel_tol=1e-6, abs_tol=1e-6
    )


@given(numbers, spreads, numbers, spreads)
def test_one_training_takes_the_papers_sd_and_its_own_episodes(mean, ci95, theirs, sd):
    d = difference(over_trainings([mean], ci95), published(theirs, sd=sd, trainings=3))
    assert isclose(d, (mean - theirs) / sqrt(sd**2 + (ci95 / 1.96) ** 2 + sd**2 / 3), rel_tol=1e-9, abs_tol=1e-12)


@given(numbers, spreads, numbers, spreads)
def test_a_single_training_is_never_more_telling_than_two_like_it(mean, ci95, theirs, sd):
    """Two trainings with the paper's own spread between them come out further from the paper than one alone."""
    paper = published(theirs, sd=sd, trainings=3)
    one, two = difference(Estimate(mean, None, 1, ci95), paper), difference(Estimate(mean, sd, 2), paper)
    assert abs(one) <= abs(two) + 1e-12


@given(spreads, st.integers(2, 20))
def test_a_published_interval_is_turned_back_into_its_own_error(ci95, n):
    estimate = published(1.0, ci95=ci95, trainings=n)
    assert isclose(estimate.sd / sqrt(n), ci95 / 1.96) and isclose(estimate.interval, ci95)


def test_no_spread_no_difference():
    assert difference(over_trainings([1.0, 2.0]), published(1.0, trainings=10)) is None
    assert difference(Estimate(1.0, 0.0, 2), Estimate(1.0, 0.0, 3)) is None  # nothing to count in


PAPER = published(70.0, sd=sqrt(3.0), trainings=3)  # standard error 1
EXACT = {"sd": 0.0, "trainings": 3}


@pytest.mark.parametrize(
    ("mean", "lower", "verdict", "text"),
    [
        (72.0, False, compare.ABOVE, "+2.0 ▲"),
        (71.9, False, compare.AT, "+1.9"),
        (69.99, False, compare.AT, "+0.0"),
        (68.1, False, compare.AT, "−1.9"),
        (68.0, False, compare.BELOW, "−2.0 ▼"),
        (68.0, True, compare.ABOVE, "−2.0 ▲"),
        (72.0, True, compare.BELOW, "+2.0 ▼"),
    ],
)
def test_two_standard_errors_decide_and_less_may_be_better(mean, lower, verdict, text):
    cell = Cell("k", Estimate(mean, **EXACT), PAPER, lower=lower)
    assert (cell.verdict, cell.difference_text) == (verdict, text)


def test_a_cell_says_what_its_spread_is_over():
    several, one = over_trainings([69.0, 71.0]), over_trainings([70.0], 0.5)
    assert Cell("k", several, PAPER).text == "70.00 ± 1.41 (2 trainings)"
    assert Cell("k", several, PAPER, digits=3, interval=True).text == "70.000 ± 1.960"
    assert Cell("k", one, PAPER).text == "70.00 ± 0.50 (1 training)"
    assert Cell("k", one, PAPER).paper_text == "70.00 ± 1.73"
    assert Cell("k", one, PAPER, 4, 1).paper_text == "70.0 ± 1.7"


def test_a_cell_without_a_run_says_so_and_keeps_the_papers_number():
    cell = Cell("k", None, PAPER)
    assert (cell.text, cell.paper_text, cell.difference_text, cell.verdict) == (
        "not run",
        "70.00 ± 1.73",
        "",
        "not run",
    )


def test_a_cell_the_paper_does_not_have_stands_alone():
    cell = Cell("k", over_trainings([1.0]), None)
    assert (cell.text, cell.paper_text, cell.verdict) == ("1.00 (1 training)", "", compare.ALONE)
    assert abs(cell.ours.mean) < inf and cell.difference is None


def test_a_recipe_of_our_own_is_not_judged():
    """The difference is there to be read, without a mark, and counts neither as above nor as below."""
    cell = Cell("x", Estimate(80.0, 1.0, 10), published(70.0, sd=1.0, trainings=10), alike=False)
    assert cell.difference_text == "+22.4" and cell.verdict == compare.ALONE

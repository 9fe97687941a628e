"""Randomness is an argument."""

import pytest
import torch
from torch.testing import assert_close

from metavib.random import seeded, standard_normal

LIKE = torch.zeros(1, dtype=torch.float64)


def test_a_generator_gives_the_shape_and_dtype_asked_for(generator) -> None:
    drawn = standard_normal((3, 2, 4), generator, like=LIKE)
    assert drawn.shape == (3, 2, 4) and drawn.dtype == torch.float64
    assert_close(drawn, torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def test_base_samples_pass_through_and_their_count_wins() -> None:
    epsilon = torch.randn(7, 2, 4, dtype=torch.float64)
    assert_close(standard_normal((3, 2, 4), epsilon, like=LIKE), epsilon, rtol=0, atol=0)


@pytest.mark.parametrize("own", [(5, 2, 4), (5, 1, 1), (1, 1, 4), (4,), (1, 4), (1, 1), (2, 1)])
def test_base_samples_broadcast_from_the_right_behind_their_samples(own) -> None:
    """(k, *own) lines up with (k, 5, 2, 4) from the right, as if ones stood behind k; k need not match anything."""
    epsilon = torch.randn(7, *own, dtype=torch.float64)
    expected = epsilon.reshape(7, *(1,) * (3 - len(own)), *own).expand(7, 5, 2, 4)
    assert_close(standard_normal((3, 5, 2, 4), epsilon, like=LIKE).expand(7, 5, 2, 4), expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(7, 3), (7, 5, 3, 4), (7, 6, 5, 2, 4)])
def test_base_samples_that_do_not_fit_are_refused(shape) -> None:
    with pytest.raises(ValueError, match=r"must broadcast to \(samples, 5, 2, 4\); got \(7, "):
        standard_normal((7, 5, 2, 4), torch.randn(*shape, dtype=torch.float64), like=LIKE)


def test_base_samples_wider_than_the_latents_are_refused() -> None:
    """Silently drawing five tasks' noise for one would change the shape of the result."""
    with pytest.raises(ValueError, match="must broadcast"):
        standard_normal((7, 1, 4), torch.randn(7, 5, 4, dtype=torch.float64), like=LIKE)


def test_no_noise_where_sampling_is_needed_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"pass noise=torch.Generator\(\)"):
        standard_normal((1, 2), None, like=LIKE)


def test_named_streams_repeat_and_differ() -> None:
    def first(*name: int) -> float:
        return float(torch.rand((), generator=seeded(*name)))

    assert first(1, 2) == first(1, 2)
    names = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 1), (0, 1, 2), (0, 2, 1), (2**31, 1)]
    assert len({first(*name) for name in names}) == len(names)


@pytest.mark.parametrize("name", [(2**32,), (0, -1)])
def test_names_outside_32_bits_are_refused(name) -> None:
    """They would be split into several words, and (2**40,) would be (0, 256)."""
    with pytest.raises(ValueError, match="below 2"):
        seeded(*name)

"""Episodes: what is drawn, how often, and that whoever asks with the same seed gets the same."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from metavib.data import augmentations as augment
from metavib.data.labelled import Labelled
from metavib.tasks.episodes import AlphabetEpisodes, Episodes, fixed


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def coded(counts, names=None, seed=0):
    """Images (1, 1, 2) that say what they are: the class, then the number of the image in it; in random order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    number = torch.cat([torch.arange(count) for count in counts])
    images = torch.stack([labels, number], -1)[:, None, None].to(torch.uint8)
    order = torch.randperm(len(labels), generator=generator(seed))
    return Labelled(images[order], labels[order], names or tuple(f"class-{c}" for c in range(len(counts))))


def decoded(x):
    """Classes and image numbers of the points of `coded` images, `(..., n)` each."""
    pixels = (x[..., 0, 0, :] * 255).round().long()
    return pixels[..., 0], pixels[..., 1]


COUNTS = [7, 12, 9, 30, 7, 11]


@settings(max_examples=40, deadline=None)
@given(
    ways=st.integers(1, 6),
    shots=st.integers(0, 4),
    queries=st.integers(1, 3),
    shape=st.sampled_from([(), (3,), (2, 4)]),
    seed=st.integers(0, 1000),
)
def test_episodes_have_distinct_classes_and_distinct_images(ways, shots, queries, shape, seed):
    """No class twice in a task, no image twice in support and query together, labels are the class slots."""
    source = Episodes(coded(COUNTS), ways=ways, shots=shots, queries=queries)
    task = source.sample(shape, generator(seed))
    for side, each in ((task.support, shots), (task.query, queries)):
        assert side.x.shape == (*shape, ways * each, 1, 1, 2) and side.x.dtype == torch.float32
        assert side.y.shape == side.mask.shape == (*shape, ways * each)
        assert side.y.dtype == torch.int64 and side.mask.dtype == torch.bool and side.mask.all()
    x = torch.cat([task.support.x, task.query.x], -4).reshape(-1, ways * (shots + queries), 1, 1, 2)
    y = torch.cat([task.support.y, task.query.y], -1).reshape(-1, ways * (shots + queries))
    for points, slots in zip(x, y, strict=True):
        classes, numbers = decoded(points)
        assert len({*zip(classes.tolist(), numbers.tolist(), strict=True)}) == len(points)
        pairs = {*zip(slots.tolist(), classes.tolist(), strict=True)}
        assert len(pairs) == len({slot for slot, _ in pairs}) == len({c for _, c in pairs}) == ways
        assert slots.bincount().tolist() == [shots + queries] * ways
        assert all(n < COUNTS[c] for c, n in zip(classes.tolist(), numbers.tolist(), strict=True))


def test_points_are_class_major():
    task = Episodes(coded(COUNTS), ways=3, shots=2, queries=1).sample((2,), generator())
    assert task.support.y.tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    assert task.query.y.tolist() == [[0, 1, 2]] * 2


def test_classes_and_images_are_uniform_whatever_the_counts():
    """Every class as often as any other in every slot, every image of a class as often as its siblings."""
    tasks = 6000
    task = Episodes(coded(COUNTS), ways=2, shots=1, queries=2).sample((tasks,), generator(1))
    slots, _ = decoded(task.support.x)
    for slot in slots.T:
        expected = tasks / len(COUNTS)
        assert (slot.bincount(minlength=6) - expected).abs().max() < 4.5 * math.sqrt(expected)
    for side in (task.support, task.query):
        classes, numbers = (t.flatten() for t in decoded(side.x))
        for c, count in enumerate(COUNTS):
            drawn = numbers[classes == c].bincount(minlength=count)
            assert len(drawn) == count
            expected = drawn.sum() / count
            assert (drawn - expected).abs().max() < 4.5 * expected.sqrt()


def test_a_class_of_just_enough_images_gives_them_all():
    source = Episodes(coded([3, 50]), ways=2, shots=2, queries=1)
    task = source.sample((40,), generator())
    classes, numbers = decoded(torch.cat([task.support.x, task.query.x], 1))
    for c, n in zip(classes, numbers, strict=True):
        assert sorted(n[c == 0].tolist()) == [0, 1, 2]


def test_unequal_shots_mask_a_uniform_number_and_blank_the_rest():
    source = Episodes(coded(COUNTS), ways=3, shots=4, queries=2, min_shots=1)
    task = source.sample((4000,), generator(2))
    shots = task.support.mask.reshape(4000, 3, 4).sum(-1)
    assert shots.min() == 1 and shots.max() == 4
    counts = shots.flatten().bincount()[1:]
    assert (counts - 3000).abs().max() < 4.5 * math.sqrt(3000)
    assert (shots != shots[:, :1]).any()
    assert task.query.mask.all()
    assert (task.support.x[~task.support.mask] == 0).all() and (task.support.y[~task.support.mask] == 0).all()
    full = Episodes(coded(COUNTS), ways=3, shots=4, queries=2).sample((4000,), generator(2))
    real = task.support.mask
    assert torch.equal(task.support.y[real], full.support.y[real])
    assert torch.equal(task.support.x[real], full.support.x[real])


@pytest.mark.parametrize("make", [Episodes, AlphabetEpisodes])
def test_a_generator_determines_the_tasks(make):
    names = tuple(f"greek/{c}" for c in range(6))
    source = make(coded(COUNTS, names), ways=4, shots=2, queries=3)
    state = torch.random.get_rng_state()
    first, again, other = (source.sample((5,), generator(s)) for s in (3, 3, 4))
    for a, b in zip((*first.support, *first.query), (*again.support, *again.query), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.support.x, other.support.x)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is left alone


class Capturable(TorchDispatchMode):
    """Refuses what a CUDA graph cannot capture: values read or made by the host, shapes that depend on values."""

    REFUSED = {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "repeat_interleave",
        "lift_fresh",
        "is_nonzero",
        "equal",
        "bincount",
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = [a for a in (args[1] if name == "index" else []) if a is not None and a.dtype == torch.bool]
        assert name not in self.REFUSED and not masks, f"{func} could not be captured"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("channels", [1, 3])
def test_sampling_and_augmenting_could_be_captured_in_a_cuda_graph(channels):
    names = tuple(f"greek/{c}" for c in range(6))
    data = coded(COUNTS, names)
    data = data._replace(images=data.images.repeat(1, channels, 20, 10))
    transform = augment.Compose(
        (
            augment.RandomResizedCrop(16),
            augment.ColourJitter(),
            augment.RandomFlip(),
            augment.RandomAffine(),
            augment.Resize(14),
            augment.CentreCrop(12),
            augment.Normalise(),
        )
    )
    sources = (
        Episodes(data, ways=3, shots=2, queries=3, min_shots=1),
        Episodes(data, ways=3, shots=2, queries=3, groups=[0, 0, 0, 1, 1, 1], transform=transform),
        Episodes(data, ways=3, shots=2, queries=3, transform=transform),
        AlphabetEpisodes(data, ways=3, shots=4, queries=3, pictures=2, transform=transform),
    )
    g = generator()
    with Capturable():
        tasks = [source.sample((2,), g) for source in sources]
    assert tasks[1].query.x.shape == (2, 9, channels, 12, 12) and tasks[1].query.x.isfinite().all()
    with Capturable(), pytest.raises(AssertionError, match="could not be captured"):
        tasks[1].query.x.max().item()


@pytest.mark.parametrize("batch", [1, 7, 30, 100])
def test_fixed_episodes_do_not_depend_on_how_they_are_batched(batch):
    source = Episodes(coded(COUNTS), ways=3, shots=2, queries=3, min_shots=1)
    batches = list(fixed(source, count=30, seed=5, batch=batch))
    assert [b.query.batch_shape[0] for b in batches] == [min(batch, 30 - i) for i in range(0, 30, batch)]
    one_by_one = list(fixed(source, count=40, seed=5, batch=1))[:30]  # nor on how many there are to be
    for column in range(3):
        for side in ("support", "query"):
            got = torch.cat([getattr(b, side)[column] for b in batches])
            assert torch.equal(got, torch.cat([getattr(b, side)[column] for b in one_by_one]))


def test_fixed_episodes_are_the_same_for_every_consumer_and_differ_by_seed():
    data = coded(COUNTS)
    first = next(fixed(Episodes(data, ways=3, shots=2, queries=3), count=20, seed=0, batch=20))
    torch.rand(5)  # someone else's random numbers
    second = next(fixed(Episodes(data, ways=3, shots=2, queries=3), count=20, seed=0, batch=20))
    assert torch.equal(first.query.x, second.query.x) and torch.equal(first.support.x, second.support.x)
    other = next(fixed(Episodes(data, ways=3, shots=2, queries=3), count=20, seed=1, batch=20))
    assert not torch.equal(first.query.x, other.query.x)
    assert len({tuple(x.flatten().tolist()) for x in first.query.x}) == 20  # and from one another
    shifted = (first.query.x[1:] == other.query.x[:-1]).flatten(1).all(-1)
    assert not shifted.any()  # seeds next to one another share no episodes


def test_the_transform_is_called_once_on_all_raw_images_with_the_generator():
    calls = []

    def transform(images, given):
        calls.append((images.shape, images.dtype, given))
        return images.float().mean(-1, keepdim=True)

    data, g = coded(COUNTS), generator()
    task = Episodes(data, ways=2, shots=3, queries=4, transform=transform).sample((5,), g)
    assert calls == [(torch.Size([5 * 2 * 7, 1, 1, 2]), torch.uint8, g)]
    assert task.support.x.shape == (5, 6, 1, 1, 1)


def alphabets():
    """Six characters of a, three of b, one of c; the classes mixed."""
    names = ("a/0", "b/0", "a/1", "a/2", "c/0", "b/1", "a/3", "b/2", "a/4/rot090", "a/5")
    return coded([6] * len(names), names), names


def test_alphabet_episodes_stay_in_one_alphabet_drawn_uniformly():
    data, names = alphabets()
    source = AlphabetEpisodes(data, ways=3, shots=2, queries=3)
    assert source.alphabets == ("a", "b")  # c has too few characters
    tasks = 3000
    task = source.sample((tasks,), generator())
    classes, numbers = decoded(torch.cat([task.support.x, task.query.x], 1))
    assert not (classes == names.index("c/0")).any()
    letters = torch.tensor([ord(name[0]) for name in names])[classes]
    assert (letters == letters[:, :1]).all()
    share = (letters[:, 0] == ord("a")).float().mean()
    assert abs(share - 0.5) < 4.5 * 0.5 / math.sqrt(tasks)
    code = (classes * 100 + numbers).sort(-1).values
    assert (code.diff(dim=-1) > 0).all()  # support and query share no image
    a = classes[letters[:, 0] == ord("a")][:, :6:2]  # one support image of each of the three slots
    expected = a.numel() / 6
    drawn = a.flatten().bincount(minlength=10)
    assert (drawn[drawn > 0] - expected).abs().max() < 4.5 * math.sqrt(expected) and (drawn > 0).sum() == 6


def test_episodes_of_groups_stay_in_one_group_drawn_uniformly():
    """Whatever the number of its classes; within it classes are uniform."""
    groups = [0, 1, 0, 1, 1, 0, 1, 1]
    source = Episodes(coded([6] * 8), ways=3, shots=2, queries=3, groups=groups)
    tasks = 3000
    classes, _ = decoded(source.sample((tasks,), generator()).support.x)
    drawn = torch.tensor(groups)[classes]
    assert (drawn == drawn[:, :1]).all()
    assert abs((drawn[:, 0] == 0).float().mean() - 0.5) < 4.5 * 0.5 / math.sqrt(tasks)
    assert (classes[:, ::2].sort(-1).values.diff(dim=-1) > 0).all()
    of_larger = classes[drawn[:, 0] == 1][:, ::2]
    counts = of_larger.flatten().bincount(minlength=8)[torch.tensor(groups) == 1]
    assert (counts - of_larger.numel() / 5).abs().max() < 4.5 * math.sqrt(of_larger.numel() / 5)
    of_four = Episodes(coded([6] * 8), ways=4, shots=2, queries=3, groups=groups).sample((200,), generator())
    assert (torch.tensor(groups)[decoded(of_four.support.x)[0]] == 1).all()  # the other group has three
    with pytest.raises(ValueError, match="between 1 and the 5 classes of the largest group; got 6"):
        Episodes(coded([6] * 8), ways=6, shots=2, queries=3, groups=groups)
    with pytest.raises(ValueError, match="a number for each of the 8 classes; got 2"):
        Episodes(coded([6] * 8), ways=3, shots=2, queries=3, groups=[0, 1])


def test_a_share_of_tasks_is_of_classes_that_are_alike():
    """The others are of any classes, and so of one group as often as chance has it."""
    groups, tasks, share = [0] * 4 + [1] * 4 + [2] * 2, 4000, 0.3
    source = Episodes(coded([6] * 10), ways=3, shots=1, queries=2, groups=groups, alike=share)
    classes, _ = decoded(source.sample((tasks,), generator()).support.x)
    drawn = torch.tensor(groups)[classes]
    together = (drawn == drawn[:, :1]).all(-1)
    expected = share + (1 - share) * 2 * math.comb(4, 3) / math.comb(10, 3)
    assert abs(together.float().mean() - expected) < 4.5 * math.sqrt(expected * (1 - expected) / tasks)
    assert (drawn[together] != 2).all() and (drawn == 2).any()  # a group of two has no task of three


def test_more_shots_than_pictures_are_the_pictures_in_turn_under_different_transforms():
    data, _ = alphabets()

    def noisy(images, g):
        return images.float() + 0.4 * torch.rand(images.shape, generator=g)

    task = AlphabetEpisodes(data, ways=3, shots=7, queries=1, pictures=2, transform=noisy).sample((2,), generator())
    assert task.support.x.shape == (2, 21, 1, 1, 2) and task.query.x.shape == (2, 3, 1, 1, 2)
    assert task.support.y.tolist() == [[0] * 7 + [1] * 7 + [2] * 7] * 2
    x = task.support.x.reshape(2, 3, 7, 2)
    for picture in (x[:, :, 0::2], x[:, :, 1::2]):  # four and three draws of it
        assert (picture.floor() == picture.floor()[:, :, :1]).all()
        assert (picture != picture[:, :, :1])[:, :, 1:].any(-1).all()
    assert (x[:, :, 0].floor() != x[:, :, 1].floor()).any(-1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(ways=7, shots=1, queries=1), "ways must be between 1 and the 6 classes of the data; got 7"),
        (dict(ways=0, shots=1, queries=1), "ways must be"),
        (dict(ways=2, shots=5, queries=3), "class 'class-0' has 7 images.* need 8"),
        (dict(ways=2, shots=1, queries=0), "queries at least 1"),
        (dict(ways=2, shots=-1, queries=1), "shots must be at least 0"),
        (dict(ways=2, shots=2, queries=1, min_shots=3), "min_shots must be between 0 and shots=2; got 3"),
    ],
)
def test_impossible_episodes_are_refused_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        Episodes(coded(COUNTS), **options)


def test_alphabets_too_small_and_counts_below_one_are_refused():
    data, _ = alphabets()
    with pytest.raises(ValueError, match="no alphabet has 7 characters: the largest has 6"):
        AlphabetEpisodes(data, ways=7, shots=1, queries=1)
    for options in (dict(ways=0, shots=1), dict(ways=3, shots=2, pictures=0), dict(ways=3, shots=1, pictures=2)):
        with pytest.raises(ValueError, match="ways must be at least 1, and pictures between 1 and shots"):
            AlphabetEpisodes(data, queries=1, **options)
    with pytest.raises(ValueError, match="count and batch must be at least 1"):
        next(fixed(Episodes(data, ways=3, shots=1, queries=1), count=0, seed=0, batch=5))


def test_labels_that_do_not_fit_are_refused():
    data = coded(COUNTS)
    with pytest.raises(ValueError, match="labels must lie below the 5 classes; got 5"):
        Episodes(data._replace(names=data.names[:5]), ways=2, shots=1, queries=1)
    with pytest.raises(ValueError, match="equally many"):
        Episodes(data._replace(labels=data.labels[1:]), ways=2, shots=1, queries=1)

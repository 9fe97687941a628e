"""Few-shot classification: N-way K-shot episodes from labelled images or embeddings, and the protocol around them.

Accuracy, NLL and Brier score are means over test episodes with their 95% interval over episodes; ECE pools all test
points. None of these is a spread over trainings: that one is a standard deviation over several runs, and only
`metavib.show.tables` makes it, from their records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from math import ceil
from typing import Any, final

import torch
from torch import Generator, Tensor

from metavib.baselines import AllWay
from metavib.baselines.embedding import class_means, memberships
from metavib.baselines.pixels import logistic_regression, nearest_neighbour
from metavib.baselines.proto import Prototypes
from metavib.data import Labelled, Splits
from metavib.data.augmentations import Transform, unit
from metavib.data.labelled import concatenate
from metavib.data.shifts import shifted
from metavib.encoders import AdditiveEncoder, SimplifiedSites, UnitSites
from metavib.kernels import ExplicitKernel
from metavib.likelihoods import ClassLikelihood, ordered
from metavib.marginals import Normal
from metavib.model import Model
from metavib.networks.embedded import Embedded
from metavib.posteriors import likeness
from metavib.priors import FunctionPrior
from metavib.progress import Bar
from metavib.random import Stream, seeded
from metavib.tasks.episodes import AlphabetEpisodes, Episodes, fixed
from metavib.tasks.inputs import points
from metavib.tasks.source import TaskSource
from metavib.tasks.task import Examples, Task
from metavib.training import build, bundled, metrics
from metavib.training.config import BOUND, CLASSES, TRANSFER, Config
from metavib.training.engine.compile import Work, compiled
from metavib.training.engine.graph import replayed
from metavib.training.protocols.combined import check_likelihood, check_network, check_shifts
from metavib.training.protocols.experiment import PROTOTYPES, TEST, VALIDATION, Experiment
from metavib.training.protocols.seen import evaluation_transform, load, training_transform
from metavib.training.resplit import Known, OnFeatures
from metavib.training.temperature import AT, PLAIN, Outcomes, Temperature, fit_temperature, fitted, tempered, trust

CHUNK = {"cpu": 25, "cuda": 100}  # episodes of 28 x 28 pixels at once, and fewer of larger images
POINTS = 100  # what an episode may have without counting as several
NEIGHBOUR, LOGISTIC = "nearest neighbour of", "logistic regression of"  # pixels, or features
PROTOTYPE = "nearest prototypes of its own features"
OBVIOUS = 200  # test episodes of these
UNKNOWN = 200  # and of known classes beside unknown ones

Predict = Callable[[Task], Tensor]
"""Probabilities of the classes at all query points of a batch of episodes."""


@final
class Classification(Experiment):
    """Episodes of one of the image datasets, or of embeddings.

    Args:
        config: that of the run.
        splits: the data, where it is at hand; read from disk otherwise.
        shifts: the test pictures under each shift of `test.shifts`, where they are at hand; made otherwise.

    Example:
        >>> import torch
        >>> from metavib.data import Splits, labelled
        >>> from metavib.training.protocols.classification import Classification
        >>> from metavib.training.recipes import recipe
        >>> pixels, labels = torch.zeros(100, 1, 32, 32, dtype=torch.uint8), torch.arange(100) // 20
        >>> parts = (labelled(pixels, labels, [f"{part}{c}" for c in range(5)]) for part in "abc")
        >>> episodes = Classification(recipe("glyphs", "gp-vib"), Splits(*parts))
        >>> episodes.sample((2,), torch.Generator()).support.x.shape  # two tasks of five classes, one picture of each
        torch.Size([2, 5, 1, 28, 28])
    """

    def __init__(
        self, config: Config, splits: Splits | None = None, shifts: Mapping[str, Labelled] | None = None
    ) -> None:
        if config.repeats > 1:
            raise ValueError("image experiments train one model a run: start a run for each seed, with repeats = 1.")
        check_network(config)
        self.ways = config.test.ways or config.tasks.ways  # of a task in validation and test
        for ways in (config.tasks.ways, self.ways):
            check_likelihood(config, ways)
        if self.ways != config.tasks.ways:  # refused where weights belong to ways, before any work
            build.of_ways(build.model(config), config, self.ways)
        self.config, self.dtype = config, build.DTYPES[config.precision]
        self.splits = (load(config.tasks) if splits is None else splits).to(config.device)
        side = 28 if _vectors(self.splits.validation) else max(config.tasks.size, 28)
        self.chunk = max(1, CHUNK[torch.device(config.device).type] * 28**2 // side**2)
        self.source = self._training()
        self.start = bundled.checkpoint_of(config.model.pretrained) if _starts_from_bundled(config) else None
        self._validation: dict[tuple[int, int], list[Task]] = {}
        self._scores: _Scores | None = None
        self._shifted = dict(shifts or {})

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training episodes (mini-batches of all classes, in the methods that transfer)."""
        return self.source.sample(shape, generator).to(self.dtype)

    def acquaint(self, model: Model, *, quiet: bool = True) -> None:
        """Gives a new model the weights that it starts from, where a config names a model that comes with the package.

        And shows the embeddings of the training classes to a backbone that centres and whitens by them.
        """
        if self.start is not None:
            bundled.start(model, self.start, whole=self._starts_as_it_is)
        for part in model.modules():
            if isinstance(part, Embedded):
                part.look(self.splits.train.images, self.splits.train.labels)

    def check(self) -> None:
        """Refuses validation and test episodes of more classes or images than there are."""
        if self.config.train.validate_every:
            for shots in self._validation_shots:
                self._validation_source(self.ways, shots)
        for shots in self._test_shots:
            self._test_source(shots)
        check_shifts(self.config)
        if self.config.test.unknown and 2 * self.ways > self.splits.test.classes:
            raise ValueError(
                f"test.unknown needs twice as many test classes as a task has; got {self.splits.test.classes} for "
                f"tasks of {self.ways}."
            )

    def obvious(self) -> dict[str, float]:
        """Accuracy of what takes no meta-training, on the validation episodes; where predictions are calibrated alone.

        Protocols of the literature have baselines of their own.
        """
        if not self.config.train.calibrate:
            return {}
        episodes = self._all_validation_tasks()
        return {name: float(metrics.accuracy(*found).mean()) for name, found in self._of_inputs(episodes)}

    def validate(self, model: Model) -> dict[str, float]:
        """Accuracy and NLL on the validation episodes, always the same ones.

        Where predictions are to be calibrated, the NLL is that under temperatures which are fitted here, one for each
        number of shots, and drawn towards 1 where there are few classes, or towards those of the model that training
        started from; minus the NLL is the score. Where tasks show pictures of several kinds (`tasks.spoilt`), these
        temperatures depend on how alike the classes of a task are.
        """
        if self._scores is None or self._scores.model is not model:
            self._scores = _Scores(self, model)
        accuracy, nll, *found = self._scores()
        model.train()
        if not self.config.train.calibrate:
            return {"accuracy": float(accuracy), "nll": float(nll), "score": float(accuracy)}
        beside = {PROTOTYPES: float(found.pop(0))} if self._has_prototypes(model) else {}
        shots, known = self._validation_shots, self.known_temperature
        r = self._likeness_in_validation(model) if self._knows_likeness(model) else None
        columns = [t.chunk(len(shots)) for t in (*found, *([] if r is None else [r]))]
        tasks = {k: Outcomes(*part) for k, *part in zip(shots, *columns, strict=True)}
        # The scale of other methods' probabilities means nothing at other shots.
        own = self.config.method in (*BOUND, CLASSES)
        best = fitted(tasks, power=trust(self.splits.validation.classes) if own else 1.0)
        under = {k: tempered(part.p, best.of(k, part.r).reshape(-1, 1, 1)) for k, part in tasks.items()}
        nll = torch.cat([metrics.nll(under[k], part.y, part.mask) for k, part in tasks.items()]).mean()
        best = replace(best, values=tuple(known.at(k) * T for k, T in zip(shots, best.values, strict=True)))
        return {"accuracy": float(accuracy), "nll": float(nll), **beside, **best.numbers(), "score": -float(nll)}

    def temperature(self, validation: dict[str, float], start: dict[str, float]) -> Temperature:
        """The temperature at each number of shots that was validated with, of classes in general.

        A few validation classes may happen to be harder than others, or easier. A model that training starts from has
        seen the training classes as little as them, so that it tells by how much: by the ratio of its temperatures on
        tasks of all these classes and of the validation classes. Other trainings have nothing to tell it by.
        """
        found = Temperature.of_numbers(validation)
        if self.start is None:
            return found
        general = [self._of_all_classes[f"{AT}{k}"] / start[f"{AT}{k}"] for k in found.shots]
        values = tuple(T * ratio for T, ratio in zip(found.values, general, strict=True))
        return replace(found, values=values, slope=self.known_temperature.slope)

    @property
    def known_temperature(self) -> Temperature:
        """That of the model which training starts from, before validation has said anything; its network has none."""
        return self.start.temperature if self.start is not None and self._starts_as_it_is else PLAIN

    @property
    def _starts_as_it_is(self) -> bool:
        """Whether the model that training starts from is of the same method, so that its predictions are a start."""
        return self.start is not None and self.start.config.method == self.config.method

    @cached_property
    def _of_all_classes(self) -> dict[str, float]:
        """The validation of the model that training starts from, on tasks of training and validation classes alike."""
        model = build.model(self.config).to(self.config.device)
        self.acquaint(model)
        both = concatenate(self.splits.train, self.splits.validation)
        return Classification(self.config, self.splits._replace(validation=both)).validate(model)

    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """A row for each number of shots and of inner steps, on episodes that depend on the test seed alone."""
        config, test, ways = self.config, self.config.test, self.ways
        rows = []
        for shift, shots in product(("", *test.shifts), self._test_shots):
            source = self._test_source(shots, shift)
            for inner in test.inner_steps or (None,):
                tested = build.at_test(model, config, inner_steps=inner, ways=ways)
                sizes: Any = {"seed": _seed(TEST, test.seed), "batch": self._at_once(ways, shots)}
                episodes = partial(fixed, source, count=test.tasks, **sizes)
                plain = self.tester(tested)
                warm: Work = partial(self.probabilities, temperature=temperature)
                predict = plain if temperature.plain else self.tester(tested, warm)
                with Bar(f"testing {ways}-way {shots}-shot", test.tasks, show=not quiet) as advance:
                    p, y, mask = _over(episodes(), predict, advance=advance)
                row: dict[str, Any] = {
                    "ways": ways,
                    "shots": shots,
                    "episodes": test.tasks,
                    "metrics": metrics.report(p, y, mask),
                }
                row |= {} if test.min_shots is None else {"min_shots": min(test.min_shots, shots)}
                if config.train.calibrate:
                    row["temperature"], *slopes = temperature.warmth(shots)
                    row |= {"likeness": slopes} if temperature.likeness else {}
                    row |= {} if shift else {"obvious": self._obvious_rows(source, tested, shots)}
                if test.unknown:
                    row["unknown"] = self._unknown(tested, self.tested(shift), shots)
                if shift:
                    row["shift"] = shift
                if test.temperature:
                    T = fit_temperature(*_over(self._validation_tasks(ways, shots), self.tester(tested)))
                    untempered = p if temperature.plain else _over(episodes(), plain)[0]
                    cooled = metrics.report(tempered(untempered, T), y, mask)
                    row |= {"temperature": T, "tempered_metrics": cooled}
                rows.append(row if inner is None else {**row, "inner_steps": inner})
        return {"experiment": config.tasks.name, "method": config.method, "kernel": config.model.kernel, "rows": rows}

    @torch.no_grad()
    def _unknown(self, model: Model, data: Labelled, shots: int) -> dict[str, float]:
        """AUROC of pictures of a task's classes against pictures of as many others, by what the model says of both.

        By the largest probability, by the largest latent mean (of ProtoNet: minus the distance to the nearest
        centroid), and by minus the latent variance, where there is one.
        """
        test, ways = self.config.test, self.ways
        queries = min(5, test.queries)
        source = self._episodes(data, ways=2 * ways, shots=shots, queries=queries)
        noise, found = seeded(TEST, device=self.config.device), dict[str, list[Tensor]]()
        assert isinstance(model.likelihood, ClassLikelihood)
        for task in fixed(source, count=min(UNKNOWN, test.tasks), seed=_seed(TEST, test.seed), batch=self.chunk):
            few = Examples(*(t[:, : ways * shots] for t in task.support))
            q = model(Task(few, task.query).to(self.dtype), noise)
            scores = {"probability": ordered(q, model.likelihood.predict(q, noise)).amax(-1), "mean": q.mean.amax(-1)}
            scores |= {"variance": -q.var.mean(-1)} if isinstance(q, Normal) else {}
            for name, each in scores.items():
                found.setdefault(name, []).append(each)
        halves = {name: torch.cat(each).split(ways * queries, -1) for name, each in found.items()}
        return {name: metrics.auroc(known, other) for name, (known, other) in halves.items()}

    def on_test(self, shots: int, predict: Predict) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, labels and masks from any other method on the test episodes of some shots."""
        test, source = self.config.test, self._test_source(shots)
        batch = self._at_once(self.ways, shots)
        return _over(fixed(source, count=test.tasks, seed=_seed(TEST, test.seed), batch=batch), predict)

    def _obvious_rows(self, source: TaskSource, model: Model, shots: int) -> dict[str, Any]:
        """What simpler methods make of some of the test episodes: of the pixels, and of the model's own features.

        Distances from prototypes become probabilities under a temperature of their own, fitted on validation.
        """
        count, seed = min(OBVIOUS, self.config.test.tasks), _seed(TEST, self.config.test.seed)
        episodes = list(fixed(source, count=count, seed=seed, batch=self.chunk))
        rows = {name: metrics.report(*each) for name, each in self._of_inputs(episodes)}
        certain = {name: {"accuracy": row["accuracy"]} for name, row in rows.items() if name.startswith(NEIGHBOUR)}
        rows |= certain  # a neighbour gives no probabilities
        if self._has_prototypes(model):
            predict = self.tester(model, self.beside_prototypes)
            T = fit_temperature(*_over(self._validation_tasks(self.ways, shots), predict), cautious=True)
            p, y, mask = _over(episodes, predict)
            rows[PROTOTYPE] = metrics.report(tempered(p, T), y, mask)
        return rows

    def _of_inputs(self, episodes: list[Task]) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
        """Probabilities, labels and masks from each baseline of the pixels, or of the vectors in their place."""
        inputs = "features" if _vectors(self.splits.test) else "inked pixels" if self.config.tasks.ink else "pixels"
        for name, predict in ((NEIGHBOUR, nearest_neighbour), (LOGISTIC, logistic_regression)):
            yield f"{name} {inputs}", _over(episodes, partial(predict, ways=self.ways))

    @property
    def _test_shots(self) -> Sequence[int]:
        return self.config.test.shots or (self.config.tasks.shots,)

    @property
    def _validation_shots(self) -> Sequence[int]:
        """A temperature is to serve tasks of every size that is tested."""
        return self._test_shots if self.config.train.calibrate else (self.config.tasks.shots,)

    def _test_source(self, shots: int, shift: str = "") -> TaskSource:
        test = self.config.test
        least = None if test.min_shots is None else min(test.min_shots, shots)
        return self._episodes(self.tested(shift), ways=self.ways, shots=shots, queries=test.queries, min_shots=least)

    def tested(self, shift: str) -> Labelled:
        """The pictures of the test, under a shift where there is one."""
        if shift and shift not in self._shifted:
            tasks = self.config.tasks
            self._shifted[shift] = shifted(self.splits.test, shift, ink=tasks.ink, root=tasks.root).to(
                self.config.device
            )
        return self._shifted[shift] if shift else self.splits.test

    def _validation_source(self, ways: int, shots: int) -> TaskSource:
        """Episodes like those of training, where they have its classes and shots; like those of the test elsewhere."""
        tasks, test = self.config.tasks, self.config.test
        as_trained = (ways, shots) == (tasks.ways, tasks.shots) and self.config.method not in TRANSFER
        as_trained = as_trained and not self.config.train.calibrate
        sizes: Any = {"ways": ways, "shots": shots, "queries": tasks.queries if as_trained else test.queries}
        least = tasks.min_shots if as_trained else None
        alike = 1.0 if tasks.spoilt else 0.0
        return self._episodes(self.splits.validation, **sizes, min_shots=least, alike=alike)

    def _at_once(self, ways: int, shots: int) -> int:
        """Test episodes at once: fewer where each has many points."""
        return max(1, self.chunk * POINTS // max(POINTS, ways * (shots + self.config.test.queries)))

    def _training(self) -> TaskSource:
        tasks = self.config.tasks
        data = self.splits.validation if tasks.learn_from == "validation" else self.splits.train
        transform = unit if _vectors(data) else training_transform(tasks)
        if self.config.method in TRANSFER:
            if data.classes != self.config.model.classes:
                raise ValueError(
                    f"model.classes must be the {data.classes} training classes; got {self.config.model.classes}."
                )
            return AllWay(data, batch_size=tasks.queries, transform=transform)
        sizes: Any = {"ways": tasks.ways, "shots": tasks.shots, "queries": tasks.queries}
        whole = self.config.train.splits > 1  # the splits decide how many points of a class are in the support
        least = None if whole else tasks.min_shots
        alike = 1.0 if tasks.spoilt else tasks.alike
        return self._episodes(data, **sizes, min_shots=least, alike=alike, transform=transform)

    def _episodes(
        self,
        data: Labelled,
        *,
        ways: int,
        shots: int,
        queries: int,
        min_shots: int | None = None,
        alike: float = 0.0,
        transform: Transform | None = None,
    ) -> TaskSource:
        tasks = self.config.tasks
        seen = unit if _vectors(data) else (training_transform if tasks.augment_test else evaluation_transform)(tasks)
        transform = transform or seen
        if tasks.alphabets:
            sizes: Any = {"ways": ways, "shots": shots, "queries": queries, "pictures": min(shots, tasks.shots)}
            return AlphabetEpisodes(data, **sizes, transform=transform)
        few = tasks.name == "images"  # whose classes have as many pictures as they have
        options: Any = {"min_shots": min_shots, "few": few, "transform": transform}
        if alike:  # by what stands before the first / of the name of a class: an alphabet, or a way to see pictures
            heads = [name.partition("/")[0] for name in data.names]
            largest = max(Counter(heads).values())
            if tasks.alike and largest < ways:
                raise ValueError(
                    f"tasks.alike takes the {ways} classes of a task from one alphabet, which is what stands before "
                    f"the first / of their names; the largest has {largest} to train on. Leave it at 0, or lower "
                    "tasks.ways."
                )
            numbers = {head: number for number, head in enumerate(dict.fromkeys(heads))}
            options |= {"groups": [numbers[head] for head in heads], "alike": alike}
        return Episodes(data, ways=ways, shots=shots, queries=queries, **options)

    def _validation_tasks(self, ways: int, shots: int) -> list[Task]:
        if (ways, shots) not in self._validation:
            source = self._validation_source(ways, shots)
            count, seed = self.config.train.validation_tasks, _seed(VALIDATION, 0)
            batch = ceil(count / ceil(count / self.chunk))  # equally large, so that one compilation does for all
            self._validation[ways, shots] = list(fixed(source, count=count, seed=seed, batch=batch))
        return self._validation[ways, shots]

    def _all_validation_tasks(self) -> list[Task]:
        return [batch for shots in self._validation_shots for batch in self._validation_tasks(self.ways, shots)]

    @torch.no_grad()
    def _validation_scores(self, model: Model, noise: Generator, work: Work) -> tuple[Tensor, ...]:
        """Mean accuracy and NLL, and what they are the means of: probabilities, labels and mask.

        In third place, where predictions are calibrated, the mean accuracy of prototypes.
        """
        config, tasks = self.config, self._all_validation_tasks()
        tested = build.at_test(model, config, ways=self.ways) if config.method in TRANSFER else model.eval()
        found = [work(tested, [noise], batch) for batch in tasks]
        y, mask = torch.cat([batch.query.y for batch in tasks]), torch.cat([batch.query.mask for batch in tasks])
        p, *beside = (torch.cat(column) for column in zip(*found, strict=True))
        accuracies = [metrics.accuracy(each, y, mask).mean() for each in (p, *beside)]
        return accuracies[0], metrics.nll(p, y, mask).mean(), *accuracies[1:], p, y, mask

    def probabilities(
        self, model: Model, streams: Sequence[Stream], tasks: Task, temperature: Temperature = PLAIN
    ) -> tuple[Tensor]:
        """Of the classes at all query points of some episodes, `(episodes, v, ways)`, under a temperature."""
        (noise,) = streams
        assert isinstance(model.likelihood, ClassLikelihood)
        if temperature.of_features:
            return self.beside_prototypes(model, streams, tasks, temperature)[:1]
        q = model(tasks.to(self.dtype), noise)
        p = ordered(q, model.likelihood.predict(q, noise))
        return (p if temperature.plain else tempered(p, self._warmth(temperature, tasks.support)),)

    def beside_prototypes(
        self, model: Model, streams: Sequence[Stream], tasks: Task, temperature: Temperature = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Probabilities, and those of nearest prototypes of the same features, which go through the network once.

        A prototype is the mean of the features of a class, as ProtoNet has it (`metavib.baselines.proto`), of features
        as the kernel compares them, which were trained for the model's own encoder and not for this.
        """
        (noise,) = streams
        prior, likelihood, tasks = model.prior, model.likelihood, tasks.to(self.dtype)
        assert isinstance(prior, FunctionPrior) and isinstance(likelihood, ClassLikelihood)
        support, query = prior.features(tasks.support, points(tasks.query))
        known = Task(tasks.support._replace(x=support), tasks.query._replace(x=query))
        q = OnFeatures(Known(prior.kernel), model.encoder, likelihood).encode(known.support, points(known.query), noise)
        z, at = (prior.kernel.embed(phi) for phi in (support, query))
        means, marginals = class_means(z, tasks.support.y, tasks.support.mask, self.ways), q.marginals(noise)
        p = ordered(marginals, likelihood.predict(marginals, noise))
        if not temperature.plain:
            T = self._warmth(temperature, tasks.support, self._likeness(z, tasks.support))
            p = tempered(p, T * temperature.factor(query) if temperature.slope else T)
        return p, Prototypes(means).values(at).softmax(-1)

    def _warmth(self, temperature: Temperature, support: Examples, likeness: Tensor | None = None) -> Tensor:
        """The temperature of each task `(episodes, 1, 1)`, by how many points its classes have on average."""
        r = support.mask.new_zeros(support.mask.shape[:-1], dtype=self.dtype) if likeness is None else likeness
        if self.config.test.min_shots is None:
            T = temperature.of(support.y.shape[-1] / self.ways, r)
        else:
            seen = (memberships(support.y, support.mask, self.ways).amax(-2) > 0).sum(-1).clamp(min=1)
            shots = (support.mask.sum(-1) / seen).tolist()
            T = torch.stack([temperature.of(*each) for each in zip(shots, r, strict=True)])
        return T.unsqueeze(-1).unsqueeze(-1)

    def _likeness(self, z: Tensor, support: Examples) -> Tensor:
        """How alike the classes of each task are, by the embeddings of its support."""
        mask, seen = support.mask, memberships(support.y, support.mask, self.ways).amax(-2) > 0
        square = (z.square().sum(-1) * mask).sum(-1) / mask.sum(-1)
        return likeness(class_means(z, support.y, mask, self.ways), square, seen)

    @torch.no_grad()
    def _likeness_in_validation(self, model: Model) -> Tensor:
        """That of every validation task."""
        supports = [batch.to(self.dtype).support for batch in self._all_validation_tasks()]
        prior = model.prior
        assert isinstance(prior, FunctionPrior) and isinstance(prior.kernel, ExplicitKernel)
        z = [prior.kernel.embed(prior.features_of(points(support))) for support in supports]
        return torch.cat([self._likeness(*each) for each in zip(z, supports, strict=True)]).double()

    def _knows_likeness(self, model: Model) -> bool:
        """Whether the temperature may depend on it: tasks show pictures of several kinds, and a memory knows it."""
        encoder, prior = model.encoder, model.prior
        if not (self.config.tasks.spoilt and isinstance(encoder, AdditiveEncoder) and isinstance(prior, FunctionPrior)):
            return False
        return (
            isinstance(encoder.sites, SimplifiedSites | UnitSites) and encoder.obstacle(prior, model.likelihood) is None
        )

    def _has_prototypes(self, model: Model) -> bool:
        """Whether nearest prototypes of a model's features stand beside it: of pictures to be used, not compared."""
        own = isinstance(model.encoder, AdditiveEncoder) and isinstance(model.prior, FunctionPrior)
        return self.config.train.calibrate and own and not model.prior.each_point

    def tester(self, model: Model, work: Work | None = None) -> Predict:
        """Probabilities from one model and one stream of noise: on a GPU recorded once, for batches of one size.

        Args:
            model: to be tested.
            work: the last of what it returns are the probabilities; `probabilities` where None.
        """
        noise = seeded(TEST, device=self.config.device)
        work = work or self.probabilities

        def step(*tensors: Tensor) -> tuple[Tensor]:
            return (work(model, [noise], Task(Examples(*tensors[:3]), Examples(*tensors[3:])))[-1],)

        transfers = self.config.method in TRANSFER  # whose heads start from weights made on the host each time
        predict = step if transfers else replayed(step, self.config.device, [noise])
        return lambda batch: predict(*batch.support, *batch.query)[0].clone()  # the next batch overwrites it


@torch.no_grad()
def _over(episodes: Iterable[Task], predict: Predict, *, advance: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, labels and masks of all query points, `(episodes, v, ...)`."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    done = 0
    for batch in episodes:
        parts.append((predict(batch), batch.query.y, batch.query.mask))
        done += batch.batch_shape[0]
        if advance:
            advance(done)
    p, y, mask = (torch.cat(column) for column in zip(*parts, strict=True))
    return p, y, mask


class _Scores:
    """Mean accuracy and NLL of one model on the validation episodes: on a GPU recorded once, and replayed."""

    def __init__(self, world: Classification, model: Model) -> None:
        self.model, self.noise = model, seeded(TEST, device=world.config.device)
        config, transfers = world.config, world.config.method in TRANSFER
        if not transfers and world.ways != config.tasks.ways:
            model = build.of_ways(model, config, world.ways)
        step = partial(world._validation_scores, model, self.noise)
        work: Work = world.beside_prototypes if world._has_prototypes(model) else world.probabilities
        if world.start is not None:
            work = partial(work, temperature=world.known_temperature)
        self.step: Callable[[], tuple[Tensor, ...]] = partial(step, work)
        # A new head is fitted to a new copy of the model every time, and a network that is tuned makes new vectors of
        # the pictures: not the same memory, so nothing to replay.
        if not transfers and config.device != "cpu" and config.model.backbone != "tuned":
            batches = len(world._all_validation_tasks())  # larger images are in more of them
            times = config.train.steps // max(1, config.train.validate_every) * batches
            work = compiled(work, config.device, times=times // config.unrolled)
            self.step = replayed(partial(step, work), config.device, [self.noise])

    def __call__(self) -> tuple[Tensor, ...]:
        self.noise.manual_seed(self.noise.initial_seed())  # the same draws every time
        return self.step()


def _vectors(data: Labelled) -> bool:
    """Whether there are vectors in place of the pictures."""
    return data.images.ndim == 2


def _starts_from_bundled(config: Config) -> bool:
    """Whether weights start as those of a model that comes with the package; a tuned network has a stage of its own."""
    return bool(config.model.pretrained) and config.model.backbone != "tuned"


def _seed(stream: int, seed: int) -> int:
    return 1000 * stream + seed

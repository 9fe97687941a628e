"""Every study of the paper and of ours, in the order of RESULTS.md. A new one is an object in this file."""

from functools import partial

from reproduction import curves, figures, runs, shifts, tables
from reproduction.study import Drawing, Study

INTERVALS = "± is the 95% interval, over trainings where there are several, else over the test tasks of one."

_ALL = (
    Study(
        name="table-1",
        title="Table 1: sinusoids",
        about="Mean squared error on new sinusoids after K points. 'Improved' is a recipe of our own.",
        runs=runs.table_1,
        tables=tables.table_1,
        empty=True,
    ),
    Study(
        name="figure-2",
        title="Figure 2: one sinusoid, more and more points",
        about="""
        One training of GP-VIB with the paper's recipe, but for a first layer that is spread over the range of the
        inputs ('reach').
        """,
        runs=runs.figure_2,
        tables=partial(tables.table_1, whole=False),
        drawings=(
            Drawing(
                "figure-2.png",
                "Truth, posterior mean and two standard deviations on one new sinusoid as points arrive",
                model="gp-vib",
            ),
        ),
    ),
    Study(
        name="table-2",
        title="Table 2: few-shot classification",
        about="""
        5-way accuracy in per cent: the mean over trainings ± their standard deviation; with one training ± is the 95%
        interval over its test episodes. The paper's numbers are the mean ± SD over 3 trainings. Each pair of columns
        has two blocks: the paper's recipe, and our own for every method that can have it, beside the paper's number for
        the method. 'Improved' averages the bound of a task over all its splits into support and query (DKT learns from
        all points of a task at once anyway, and RelationNet, which compares all pairs, has five at most), and its rates
        end at zero; on photographs the sites of GP-VIB also start larger and crops are weaker; on characters training
        tasks have 20 classes (10 at five shots; DKT's five), characters are moved about at random, and Conv4 has two
        poolings instead of four. 'Pooled' (four poolings), 'narrow' (the paper's tasks) and 'unaugmented' have less of
        this, and 'five-way' has the tasks of DKT, all twenty images of five classes; 'shorter' has half the steps,
        'wide' also twice the channels, 'crops' smaller crops. 'Small start': where the sites of GP-VIB start the paper
        does not say; from these some trainings stay at chance, and the recipe has them start larger. On
        characters MAML's 'shorter' sees as many episodes as the other methods, and 'eighth' an eighth of those its
        protocol has; on photographs its inner steps are of first order, as those of Chen et al. (2019) are, and
        'shorter' has 10,000 steps instead of 60,000 or 40,000, and rates that end at zero.
        """,
        runs=runs.table_2,
        tables=tables.table_2,
        drawings=(
            Drawing(
                "table-2.png",
                "Accuracy of ours and of the paper's; bars are 95% intervals, with one training over its test episodes",
                figures.comparison,
            ),
            Drawing(
                "first.png",
                "GP-VIB here beside the best of eleven methods in each column of the paper's table",
                figures.first_of_the_paper,
            ),
            Drawing(
                "same-recipe.png",
                "Accuracy, NLL and ECE of methods with our recipe: a mark for each training, bars are 95% intervals",
                figures.same_recipe,
            ),
        ),
        quick="omniglot-emnist/*-5-seed0,omniglot-emnist/gp-vib-linear-1-seed0",
        seeded=True,
        empty=True,
    ),
    Study(
        name="calibration",
        title="Calibration",
        about="""
        Negative log likelihood, Brier score and expected calibration error (15 bins) of the runs of [table
        2](#table-2-few-shot-classification): means over trainings, less is better. The paper has no such numbers.
        """,
        runs=runs.table_2,
        tables=partial(tables.quality, scores=("nll", "brier", "ece")),
        drawings=(
            Drawing(
                "calibration.png",
                "Accuracy against confidence from Omniglot to EMNIST; a line for each training",
                figures.reliability,
            ),
        ),
        quick="omniglot-emnist/*-5-seed0",
        seeded=True,
        of="table-2",
    ),
    Study(
        name="omniglot",
        title="Omniglot, 5-way",
        about="""
        The longer version's experiment: accuracy in per cent and negative log likelihood. ± is the 95% interval: the
        paper's over 10 trainings, ours over the test tasks where there is one training. 'Shorter': 10,000 steps instead
        of 60,000, and a cosine schedule; 'shuffled': the characters of all alphabets split at random (Finn et al.,
        2017), and not by alphabet (Vinyals et al., 2016). The paper does not say which of the two it has.
        """,
        runs=runs.omniglot,
        tables=partial(tables.further, name="omniglot"),
        quick="gp-vib-linear-1-seed0,stochastic-maml-1-seed0,gp-maml-cosine-1-seed0",
        seeded=True,
        empty=True,
    ),
    Study(
        name="augmented-omniglot",
        title="Augmented Omniglot, 20-way",
        about="""
        20 characters of an alphabet, 15 drawings each, moved about at random. At test the paper's methods see up to
        2,000 augmented points, so its numbers stand beside ours with as many, taken up by the constant-memory update. ±
        is the 95% interval: the paper's over 10 trainings, ours over the test tasks of one. 'Deeper' has one more
        convolution after each layer, 'deeper norm' batch-norm too, as the paper's improved architectures have. In inner
        steps, 'strided' takes points in a fixed order instead of a random one, 'mean' climbs F / n instead of F, and
        'twenty' takes twenty such steps of twenty points instead of five on all points.
        """,
        runs=runs.augmented_omniglot,
        tables=partial(tables.further, name="augmented-omniglot"),
        quick="gp-vib-linear-*-seed0,gp-maml-cosine-*-seed0,maml-*-seed0",
        seeded=True,
        empty=True,
    ),
    Study(
        name="beta",
        title="Beta",
        about=f"GP-VIB against the weight of the KL; on Omniglot in 2,000 steps of four tasks, on a CPU. {INTERVALS}",
        runs=runs.beta,
        tables=curves.beta,
        drawings=(Drawing("beta.png", "Scores against beta, with 95% intervals", figures.beta),),
        quick="sinusoid/beta-0.001,sinusoid/beta-1,omniglot-emnist/beta-1-5-seed0",
        seeded=True,
    ),
    Study(
        name="shots",
        title="Shots",
        about=f"""
        Accuracy in per cent against the number of shots at test, and the mean squared error on sinusoids. There MAML
        and stochastic MAML take ten inner steps at test; with less than five points these diverge on some tasks, and
        are not shown. 'Frozen': behind the network of the bundled model `photographs`, which stays as it is, of numbers
        learned from tasks of one shot, those of Gaussian classes from tasks of one to five. {INTERVALS}
        """,
        runs=runs.shots,
        tables=partial(curves.tested, varied="shots", corner="K at test"),
        drawings=(
            Drawing(
                "shots.png",
                "Accuracy, and error on sinusoids, against the number of shots at test",
                figures.tested_shots,
            ),
        ),
        quick="gp-vib-linear-1-seed0,maml-1-seed0",
        seeded=True,
    ),
    Study(
        name="inner-steps",
        title="Inner steps",
        about=f"""
        MAML and GP+MAML on Omniglot, trained for 10,000 steps with one inner step, against their number at test.
        GP+MAML climbs F in these steps, as the paper has it, or F / n ('mean'): n is 5 or 25 here, and its steps so
        many times smaller. Then MAML on mini-ImageNet, trained as long with five inner steps, on 600 tasks. Accuracy in
        per cent; {INTERVALS}
        """,
        runs=runs.inner_steps,
        tables=partial(curves.tested, varied="inner_steps", corner="steps at test"),
        drawings=(
            Drawing(
                "inner-steps.png",
                "Accuracy against the number of inner steps at test, with 95% bands",
                figures.inner_steps,
            ),
        ),
        quick="maml-shorter-1-seed0,gp-maml-linear-shorter-1-seed0",
        seeded=True,
    ),
    Study(
        name="objectives",
        title="The two objectives",
        about="""
        GP-VIB trained by the paper's bound F and by its predictive form F_p, the default for tables (THEORY.md, section
        2), on functions drawn from a known Gaussian process with noise of variance 0.1, with K points in training and
        at test. The gap is what the mean log density of new points lacks to that of the exact posterior, in nats; the
        coverage is that of 90% intervals. ± is the 95% interval over three trainings side by side.
        """,
        runs=runs.objectives,
        tables=curves.objectives,
        quick="*-beta-0.01-3",
    ),
    Study(
        name="embeddings",
        title="Features of a pretrained ResNet-12",
        about="""
        ResNet-12, trained once on an H200 to tell the training classes apart (`metavib pretrain`), gives every picture
        640 numbers (`metavib embed`); everything here is trained and tested on these, on a CPU. Each method has what
        takes features to a common place and scale (`metavib.networks.embedded`) and one to three numbers of its own,
        learned from tasks of the validation classes: the network knows its training classes by heart. 'mlp': the longer
        version's MLP with dropout, learned from tasks of the training classes. From mini-ImageNet to CUB the network
        knows all 100 classes of mini-ImageNet. 'unseen': it knows 64 of them, everything else, the temperature too, is
        learned from 16 others, and birds are a surprise. The temperature is fitted on validation. Accuracy ± is the
        95% interval over test tasks.
        """,
        runs=runs.embeddings,
        tables=partial(tables.quality, scores=("accuracy", "nll", "ece")),
        drawings=(
            Drawing(
                "embeddings.png",
                "Accuracy, NLL and ECE on features of ResNet-12; bars are 95% intervals over test tasks",
                figures.quality,
            ),
        ),
        quick="cub/gp-vib-cosine-1,cub/nearest-centroids-1",
    ),
    Study(
        name="resnet12",
        title="ResNet-12, end to end",
        about="""
        The network of the supervised stage goes on learning from tasks of pictures (`metavib train --backbone`), for
        two minutes on a GPU at most: GP-VIB, and ProtoNet and DKT with the same network. Batch-norm keeps the
        statistics of the supervised stage. The model that is tested is the best on validation, which may be the
        network as it came. The temperature is fitted on validation. Accuracy ± is the 95% interval over test tasks.
        """,
        runs=runs.resnet12,
        tables=partial(tables.quality, scores=("accuracy", "nll", "ece")),
        quick="cub/gp-vib-cosine-1-seed0,cub/proto-net-1-seed0",
        seeded=True,
    ),
    Study(
        name="shift",
        title="Pictures unlike those of training",
        about="""
        Models of Omniglot's characters, tested 5-way on Omniglot itself, on its pictures blurred, grainy or inverted,
        on handwriting (EMNIST) and on drawings made by code (`metavib.data.shifts`): accuracy in per cent, NLL and ECE
        as the model says them and under the temperature that was fitted on its ordinary validation tasks. 'Bundled' is
        the model `characters` of the package, which brings every picture to dark ink on white paper first, has its
        temperature built in, and whose ordinary test is EMNIST; the others are small networks, trained for 600 steps on
        a CPU: 'augmented' with characters that are moved about, 'beta' with a larger beta, 'full' with sites of which
        each point has its own, 'ink' with every picture brought to dark ink on white paper, 'ink augmented' also with
        strokes that are bent and drawn with broader pens, 'longer' for 3,000 steps. The last tables say how well
        pictures of five classes that a task does not have are told from those of its five, as the area under the ROC
        curve (AUROC): by the largest probability; by the largest latent mean, which in ProtoNet is minus the distance
        to the nearest centroid; and by the latent variance.
        """,
        runs=runs.shift,
        tables=shifts.tables,
        drawings=(
            Drawing(
                "shift.png",
                "Accuracy against confidence at one shot, a panel for each kind of picture and a line for each model",
                partial(shifts.reliability, variants=("", "bundled", "longer", "ink-augmented-longer")),
            ),
        ),
        quick="gp-vib-cosine-1",
    ),
    Study(
        name="shift-photographs",
        title="Photographs unlike those of training",
        about="""
        The same of photographs: models of mini-ImageNet's training classes, tested 5-way on its test classes, on their
        pictures out of focus, grainy, inverted, without colours or close up, and on birds (CUB's novel classes), of
        which none has seen any. 'Bundled' is the model `photographs` of the package, Gaussian classes. The next ones
        have its network, which stays as it is, and learn what is behind it (`metavib train mini-imagenet --backbone
        photographs --frozen`): 'ordinary' from ordinary pictures of the validation classes alone, 'spoilt' also from
        pictures spoilt in the five ways, as the bundled model has. From these GP-VIB and Gaussian classes also learn
        how their temperature depends on how alike the classes of a task are. 'Small' are small networks, trained for
        five minutes on a CPU.
        """,
        runs=runs.shift_photographs,
        tables=shifts.tables,
        drawings=(
            Drawing(
                "shift-photographs.png",
                "Accuracy against confidence at one shot, a panel for each kind of picture and a line for each model",
                partial(shifts.reliability, variants=("ordinary", "spoilt", "bundled")),
            ),
        ),
        quick="gp-vib-cosine-small-1",
    ),
    Study(
        name="unequal",
        title="Classes with different numbers of points",
        about="""
        Five classes of mini-ImageNet's test, behind the network of the bundled model `photographs`: each with as many
        pictures as the others, or with a number of its own between one and five, ten or twenty, as a person's folders
        have. Accuracy in per cent, NLL and ECE, under temperatures that were fitted on validation for as many pictures
        of a class as classes have on average. Gaussian classes: our own method (THEORY.md, section 14), which learns
        from tasks whose classes have one to five pictures each; the others from one each, or 'from such tasks', too.
        """,
        runs=runs.unequal,
        tables=shifts.unequal,
        drawings=(
            Drawing(
                "unequal.png",
                "Accuracy, NLL and ECE where classes have different numbers of points, and where they have as many",
                shifts.unequal_figure,
            ),
        ),
        quick="gaussian-classes-*",
    ),
    Study(
        name="any-number",
        title="One training for any number of points",
        about="""
        The same where the network itself learns from tasks: from one point of each of 20 classes, from five of each of
        10, or from one or two of each of 20, always in all splits of a task and with our recipe. On built-in
        characters, and from Omniglot to EMNIST in 4,000 steps of one task (our recipe has 20,000 of four). Accuracy in
        per cent, NLL and ECE, without a temperature.
        """,
        runs=runs.any_number,
        tables=shifts.unequal,
        drawings=(
            Drawing(
                "any-number.png",
                "Accuracy, NLL and ECE where classes have different numbers of points, and where they have as many",
                shifts.unequal_figure,
            ),
        ),
        quick="gaussian-classes-*",
    ),
    Study(
        name="ink",
        title="Characters in one form",
        about="""
        From Omniglot to EMNIST in 4,000 steps of one task (or as many as are said; our recipe has 20,000 of four), with
        characters as they are drawn, and 'in one form': every picture of training, validation and test is brought to
        dark ink in the middle of white paper, each by itself, and training bends strokes and draws them with broader
        pens, where it otherwise moves characters about. 'From alike ones, too': the characters of every second training
        task are all of one alphabet, and so harder to tell apart (`tasks.alike`). One training of each method serves
        one, five and ten points of a class, from tasks of one or two points of each of 20 classes (DKT: all twenty
        pictures of five classes); the sites of GP-VIB start larger, for so short a training. Accuracy in per cent, NLL
        and ECE, where it says so under a temperature that was fitted on validation. In the figure validation is on
        tasks as in training: DKT's have one point of each class, the others' one or two.
        """,
        runs=runs.ink,
        tables=shifts.unequal,
        drawings=(
            Drawing(
                "ink.png",
                "Accuracy on validation during training, and on the test against confidence, of characters in one form",
                shifts.one_form,
            ),
        ),
        quick="gaussian-classes-improved-ink-alike-2",
    ),
    Study(
        name="glyphs",
        title="Glyphs, built in",
        about="""
        Every method of table 2 on characters made from fonts, 5-way, in a short training: no download, and not in the
        paper. So short a training has the sites of GP-VIB start larger and move faster than the paper's, chosen on
        validation. 'Improved': two poolings in Conv4 instead of four, and training tasks of 20 classes (10 at five
        shots) in all their splits; 'narrow': on tasks of five classes, each in one split.
        """,
        runs=runs.glyphs,
        tables=partial(tables.quality, scores=("accuracy", "nll", "ece")),
        quick="gp-vib-linear-1,proto-net-1",
    ),
)
STUDIES = {study.name: study for study in _ALL}


def find(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}; there are {', '.join(STUDIES)}.")
    return STUDIES[name]

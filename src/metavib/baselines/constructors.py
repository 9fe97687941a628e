r"""The baselines of the paper's main table, as choices of prior, encoder and likelihood.

| method           | Z                      | encoder                         | objective                |
| ---------------- | ---------------------- | ------------------------------- | ------------------------ |
| ProtoNet         | prototypes             | Dirac at the class means        | vib, beta = 0            |
| MatchingNet      | the support in context | Dirac                           | vib, beta = 0            |
| RelationNet      | mean maps              | Dirac                           | vib, beta = 0            |
| Feature Transfer | weights of a head      | Dirac, learned; then fitted     | vib, beta = 0, `AllWay`  |
| Baseline++       | the same, cosine       | Dirac, learned; then fitted     | vib, beta = 0, `AllWay`  |
| DKT              | a function a class     | GP posterior                    | evidence                 |
"""

from math import log

from metavib.baselines.context import Context, NoContext
from metavib.baselines.dkt import ClassProcesses, MeanSoftmax, RegressionEncoder, Slots
from metavib.baselines.embedding import Embedding
from metavib.baselines.heads import FEW, MANY, CosineHead, LinearHead
from metavib.baselines.matching import MatchingEncoder
from metavib.baselines.proto import PrototypeEncoder
from metavib.baselines.relation import RelationEncoder, RelationModule, RelationScores
from metavib.baselines.transfer import SGD, CommonHead, FittedHead
from metavib.kernels import BNCosine, Cosine, ExplicitKernel, Linear
from metavib.likelihoods import ClassLikelihood, Softmax
from metavib.model import Model
from metavib.networks import Backbone

GPYTORCH_START = log(2.0)
"""softplus(0), where GPyTorch starts an output scale and a variance."""


def proto_net(backbone: Backbone, ways: int) -> Model:
    """ProtoNet (Snell et al. 2017): train with beta = 0."""
    return Model(Embedding(backbone), PrototypeEncoder(), Softmax(ways))


def matching_net(backbone: Backbone, ways: int, *, context: Context | None = None, scale: float = 100.0) -> Model:
    """MatchingNet (Vinyals et al. 2016): train with beta = 0.

    Args:
        backbone: the network.
        ways: classes of a task.
        context: `FullContext(backbone.features)` for full-context embeddings, as in DKT's comparison; none where None.
        scale: what the cosines are multiplied with.
    """
    encoder = MatchingEncoder(NoContext() if context is None else context, scale=scale)
    return Model(Embedding(backbone), encoder, Softmax(ways))


def relation_net(
    backbone: Backbone,
    ways: int,
    *,
    map_shape: tuple[int, int, int],
    norm: str = "running",
    likelihood: ClassLikelihood | None = None,
) -> Model:
    """RelationNet (Sung et al. 2018): train with beta = 0.

    Args:
        backbone: the network; its features are a flattened map.
        ways: classes of a task.
        map_shape: channels, height and width of that map.
        norm: the relation module's batch-norm encoding.
        likelihood: the squared error of the paper where None; `Softmax(ways)` for the variant with cross-entropy.
    """
    encoder = RelationEncoder(RelationModule(map_shape, norm=norm))
    return Model(Embedding(backbone), encoder, RelationScores(ways) if likelihood is None else likelihood)


def feature_transfer(backbone: Backbone, classes: int) -> Model:
    """Feature Transfer, phase 1: a linear head over all training classes. Train on `AllWay` with beta = 0."""
    return Model(Embedding(backbone), CommonHead(LinearHead(backbone.features), classes), Softmax(classes))


def baseline_pp(backbone: Backbone, classes: int) -> Model:
    """Baseline++ (Chen et al. 2019), phase 1: a cosine head over all classes. Train on `AllWay` with beta = 0."""
    head = CosineHead(backbone.features, scale=FEW if classes <= 200 else MANY)
    return Model(Embedding(backbone), CommonHead(head, classes), Softmax(classes))


def fine_tuned(trained: Model, ways: int, *, sgd: SGD = SGD()) -> Model:  # noqa: B008 - a NamedTuple cannot change
    """Phase 2 of Feature Transfer and Baseline++: the trained features, a new head fitted to each task.

    Args:
        trained: a model of phase 1, whose network is shared, not copied.
        ways: classes of a new task.
        sgd: how the head is fitted.
    """
    if not isinstance(trained.encoder, CommonHead):
        raise TypeError(
            "fine_tuned takes a model made by feature_transfer or baseline_pp; "
            f"got one whose encoder is {type(trained.encoder).__name__}."
        )
    return Model(trained.prior, FittedHead(trained.encoder.head.anew(), sgd), Softmax(ways))


def dkt(
    backbone: Backbone,
    ways: int,
    *,
    kernel: ExplicitKernel,
    scale: float = GPYTORCH_START,
    slots: int | None = None,
    noise: float = 0.1,
) -> Model:
    """DKT (Patacchiola et al. 2020): train with `evidence` in the place of `vib`.

    Args:
        backbone: the network.
        ways: classes of a task.
        kernel: an explicit kernel with its own scale fixed (`dkt_linear`, `dkt_cosine` and `dkt_bn_cosine` choose one).
        scale: starting value of each slot's scale.
        slots: sets of hyperparameters: one a class where None, as in DKT's code; 1 to share them.
        noise: variance of the regression's noise, fixed.
    """
    slots = ways if slots is None else slots
    if slots not in (1, ways):
        raise ValueError(f"slots must be 1 (shared by all classes) or ways = {ways} (one a class); got {slots}.")
    prior = ClassProcesses(backbone, Slots(kernel, slots, scale=scale))
    return Model(prior, RegressionEncoder(noise=noise), MeanSoftmax(ways))


def dkt_linear(backbone: Backbone, ways: int, *, slots: int | None = None, noise: float = 0.1) -> Model:
    """DKT with a linear kernel, which starts where DKT's does: (log 2)^2 phi . phi'."""
    scale = GPYTORCH_START**2 * backbone.features  # metavib's linear kernel divides by M, theirs does not
    return dkt(backbone, ways, kernel=Linear(learn_scale=False), scale=scale, slots=slots, noise=noise)


def dkt_cosine(backbone: Backbone, ways: int, *, slots: int | None = None, noise: float = 0.1) -> Model:
    """DKT with the cosine kernel ("CosSim")."""
    return dkt(backbone, ways, kernel=Cosine(learn_scale=False), slots=slots, noise=noise)


def dkt_bn_cosine(
    backbone: Backbone, ways: int, *, norm: str = "running", slots: int | None = None, noise: float = 0.1
) -> Model:
    """DKT with batch-norm before the cosine kernel ("BNCosSim")."""
    return dkt(
        backbone, ways, kernel=BNCosine(backbone.features, norm=norm, learn_scale=False), slots=slots, noise=noise
    )

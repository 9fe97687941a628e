"""q(Z | D_t): what is known of a task after its support set."""

from metavib.posteriors.classes import DualClasses as DualClasses
from metavib.posteriors.classes import GaussianClasses as GaussianClasses
from metavib.posteriors.classes import PrimalClasses as PrimalClasses
from metavib.posteriors.classes import Scatter as Scatter
from metavib.posteriors.functions import Dual as Dual
from metavib.posteriors.functions import EachPoint as EachPoint
from metavib.posteriors.functions import Primal as Primal
from metavib.posteriors.functions import posterior as posterior
from metavib.posteriors.memory import Memory as Memory
from metavib.posteriors.memory import Sites as Sites
from metavib.posteriors.memory import TaskMemory as TaskMemory
from metavib.posteriors.memory import likeness as likeness
from metavib.posteriors.memory import memorise as memorise
from metavib.posteriors.posterior import Encoding as Encoding
from metavib.posteriors.posterior import Posterior as Posterior
from metavib.posteriors.weights import DiagonalNormal as DiagonalNormal
from metavib.posteriors.weights import Dirac as Dirac
from metavib.posteriors.weights import Joint as Joint

"""q(Z | D_t): what is known of a task after its support set."""

from metavib.posteriors.encoding import Encoding as Encoding
from metavib.posteriors.functions import Dual as Dual
from metavib.posteriors.functions import Memory as Memory
from metavib.posteriors.functions import Primal as Primal
from metavib.posteriors.functions import Sites as Sites
from metavib.posteriors.functions import memorise as memorise
from metavib.posteriors.functions import posterior as posterior
from metavib.posteriors.parameters import DiagonalNormal as DiagonalNormal
from metavib.posteriors.parameters import Dirac as Dirac
from metavib.posteriors.posterior import Posterior as Posterior

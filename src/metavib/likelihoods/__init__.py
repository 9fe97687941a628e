r"""p(y | f): the decoder of the bound.

Every likelihood answers the same questions of any marginals q(f): the expected log likelihood
$E_q[\log p(y \mid f)]$, which the bound is made of; the log predictive density $\log E_q[p(y \mid f)]$, which
predictions are judged by; and its predictions.

| likelihood | outputs | latent values of a point | integrals over a Gaussian q(f) |
| --- | --- | --- | --- |
| `Gaussian` | real | 1 | closed form |
| `LogNormal` | real, on one side of an edge: positive, skewed | 1 | closed form |
| `LogitNormal` | real, between two ends: shares | 1 | closed form |
| `RootNormal` | real, from an edge upwards: counts, growth | 1 | closed form |
| `StudentT` | real, with outliers | 1 | over the mixing variable of the t distribution |
| `Poisson` | counts | 1 | around the mode of the integrand |
| `Bernoulli` | two classes | 1 | a mixture of probit functions |
| `Softmax` | N classes | N | Monte Carlo |

A new one needs `latents`, `targets`, `log_prob` and the predictive moments of p(y | f). The general path, Gauss-Hermite
nodes, then serves it as long as q(f) is not much wider than p(y | f) is as a function of f. Better forms override that
path, which stays as their oracle where both hold.
"""

from metavib.likelihoods.classes import Bernoulli as Bernoulli
from metavib.likelihoods.classes import Softmax as Softmax
from metavib.likelihoods.classes import ordered as ordered
from metavib.likelihoods.gaussian import Gaussian as Gaussian
from metavib.likelihoods.gaussian import LogitNormal as LogitNormal
from metavib.likelihoods.gaussian import LogNormal as LogNormal
from metavib.likelihoods.gaussian import RootNormal as RootNormal
from metavib.likelihoods.gaussian import Warped as Warped
from metavib.likelihoods.integrated import Poisson as Poisson
from metavib.likelihoods.integrated import StudentT as StudentT
from metavib.likelihoods.likelihood import ClassLikelihood as ClassLikelihood
from metavib.likelihoods.likelihood import Likelihood as Likelihood
from metavib.likelihoods.likelihood import RealLikelihood as RealLikelihood

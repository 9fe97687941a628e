"""q(Z | D_t): from a support set to a posterior."""

from metavib.encoders.additive import AdditiveEncoder as AdditiveEncoder
from metavib.encoders.classes import ClassEncoder as ClassEncoder
from metavib.encoders.composed import ComposedEncoder as ComposedEncoder
from metavib.encoders.composed import GaussianComposedEncoder as GaussianComposedEncoder
from metavib.encoders.encoder import Encoder as Encoder
from metavib.encoders.gp import GPEncoder as GPEncoder
from metavib.encoders.gradient import Descent as Descent
from metavib.encoders.gradient import GaussianGradientEncoder as GaussianGradientEncoder
from metavib.encoders.gradient import GradientEncoder as GradientEncoder
from metavib.encoders.own import OwnSites as OwnSites
from metavib.encoders.sites import ExactSites as ExactSites
from metavib.encoders.sites import FullSites as FullSites
from metavib.encoders.sites import GeneralSites as GeneralSites
from metavib.encoders.sites import SimplifiedSites as SimplifiedSites
from metavib.encoders.sites import SiteEncoder as SiteEncoder
from metavib.encoders.sites import UnitSites as UnitSites

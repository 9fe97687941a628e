"""What do many small groups of rows share? A function of all and one of each, learned by the evidence of the groups."""

from metavib.groups.learning import Learned as Learned
from metavib.groups.learning import learn as learn
from metavib.groups.prior import Hierarchy as Hierarchy
from metavib.groups.prior import hierarchical as hierarchical
from metavib.groups.report import Report as Report

"""What do many small groups of rows share? A function of all and one of each, learned by the evidence of the groups."""

from metavib.groups.class_report import ClassReport as ClassReport
from metavib.groups.learning import Learned as Learned
from metavib.groups.learning import learn as learn
from metavib.groups.prior import Hierarchy as Hierarchy
from metavib.groups.prior import hierarchical as hierarchical
from metavib.groups.prior import like as like
from metavib.groups.report import Report as Report
from metavib.groups.shares import LearnedShares as LearnedShares
from metavib.groups.shares import Shares as Shares
from metavib.groups.shares import learn_shares as learn_shares
from metavib.groups.shares import like_shares as like_shares

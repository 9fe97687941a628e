"""Records to tables, before anybody decides how a table looks: a function for each table."""

from metavib.grids.accuracy import augmented_omniglot as augmented_omniglot
from metavib.grids.accuracy import further as further
from metavib.grids.accuracy import omniglot as omniglot
from metavib.grids.accuracy import table_2 as table_2
from metavib.grids.curves import beta as beta
from metavib.grids.curves import inner_steps as inner_steps
from metavib.grids.curves import progress as progress
from metavib.grids.curves import shots as shots
from metavib.grids.grid import Grid as Grid
from metavib.grids.grid import Row as Row
from metavib.grids.quality import calibration as calibration
from metavib.grids.quality import images as images
from metavib.grids.regression import sinusoids as sinusoids
from metavib.grids.regression import table_1 as table_1

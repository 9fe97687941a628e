"""Records to tables, before anybody decides how a table looks: a function for each table."""

from reproduction.grids.accuracy import augmented_omniglot as augmented_omniglot
from reproduction.grids.accuracy import further as further
from reproduction.grids.accuracy import omniglot as omniglot
from reproduction.grids.accuracy import table_2 as table_2
from reproduction.grids.curves import beta as beta
from reproduction.grids.curves import inner_steps as inner_steps
from reproduction.grids.curves import progress as progress
from reproduction.grids.curves import shots as shots
from reproduction.grids.grid import Grid as Grid
from reproduction.grids.grid import Row as Row
from reproduction.grids.quality import calibration as calibration
from reproduction.grids.quality import images as images
from reproduction.grids.regression import sinusoids as sinusoids
from reproduction.grids.regression import table_1 as table_1

"""Image datasets: what each file format holds, read once, checked, and cached as raw pixels."""

from metavib.data.cache import cache_root as cache_root
from metavib.data.catalog import Entry as Entry
from metavib.data.catalog import catalog as catalog
from metavib.data.catalog import dataset_root as dataset_root
from metavib.data.class_splits import EXPERIMENTS as EXPERIMENTS
from metavib.data.class_splits import splits as splits
from metavib.data.folder import folder as folder
from metavib.data.folder import folder_splits as folder_splits
from metavib.data.labelled import Labelled as Labelled
from metavib.data.labelled import Splits as Splits
from metavib.data.labelled import check_disjoint as check_disjoint
from metavib.data.labelled import concatenate as concatenate
from metavib.data.labelled import invert as invert
from metavib.data.labelled import labelled as labelled
from metavib.data.labelled import rotations as rotations
from metavib.data.labelled import select_classes as select_classes

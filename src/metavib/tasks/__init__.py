"""Tasks and the distributions they are drawn from."""

from metavib.tasks.task import Examples as Examples
from metavib.tasks.task import Task as Task
from metavib.tasks.task import examples as examples
from metavib.tasks.task import pad as pad
from metavib.tasks.task import select as select
from metavib.tasks.task import stack as stack
from metavib.tasks.task import task as task

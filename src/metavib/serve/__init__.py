"""An HTTP service for thousands of tasks of a trained model, and a page where one watches it learn.

A trained model is one small network; a task is a few kilobytes that learn on. `metavib serve` keeps tasks in a database
and answers over HTTP; `Client` speaks to it. How a request travels, file by file:

    guard     size, token, timeout, log        every request passes here first
    app       addresses, bodies, statuses      parsed in a worker thread, not in the event loop
    service   make, update, forget, merge,     the verbs, with what is at hand (a cache of predictors)
              predict, export, import
    combine   those who come together          one transaction, or one pass of the network, for all of them
    store     SQLite or PostgreSQL             exactly once: state, version and key in one transaction
    engine    a trained model                  rows, pictures and arrays in; states as bytes; predictions out
"""

try:
    import fastapi as _fastapi  # noqa: F401
    import httpx as _httpx  # noqa: F401
    import sqlalchemy as _sqlalchemy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the service needs {error.name}, which is not installed: pip install 'metavib[serve]'."
    ) from error

from metavib.serve.client import Client as Client
from metavib.serve.client import ServiceError as ServiceError
from metavib.serve.client import Task as Task

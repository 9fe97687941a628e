"""A GPU shared by several processes truly at once, by NVIDIA's Multi-Process Service.

Without it the processes on a GPU take turns, and eight small trainings at once are no faster than one after the other.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """The environment variables of processes that are to share the GPU; none where there is nothing to set.

    Starts a daemon of our own, in a folder of its own, and ends it with the block: also when this process is killed,
    since a process beside it waits for just that. Where a daemon runs already (its folder is in the environment) or
    the program is not installed, nothing is started.
    """
    if PIPES in os.environ or shutil.which(CONTROL) is None:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="metavib-mps-")
    variables = {PIPES: folder, LOGS: folder}
    environment = {**os.environ, **variables}
    started = subprocess.run([CONTROL, "-d"], env=environment, capture_output=True, text=True)
    if started.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        warnings.warn(
            f"{CONTROL} did not start ({(started.stderr or started.stdout).strip()[-200:]}): "
            "processes take turns on the GPU.",
            RuntimeWarning,
            stacklevel=3,
        )
        yield {}
        return
    # It reads until the pipe closes, which the kernel sees to however we end; `quit` waits for the daemon's clients.
    last_words = f"read -r _; echo quit | {CONTROL}; rm -rf {shlex.quote(folder)}"
    keeper = subprocess.Popen(["sh", "-c", last_words], stdin=subprocess.PIPE, env=environment, start_new_session=True)
    try:
        yield variables
    finally:
        keeper.communicate()

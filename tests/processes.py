"""Runs of `reproduction.queue` without processes: the commands run in this one."""

import subprocess
import sys
from types import SimpleNamespace

from metavib import cli


class Here:
    """A process that is none: the command runs in this one, at once, and its output goes to the log."""

    started: list[list[str]] = []

    def __init__(self, command, stdout, stderr, env, pass_fds, process_group) -> None:
        assert command[1:3] == ["-m", "metavib"] and env["OMP_NUM_THREADS"] == "1"
        Here.started.append(command)
        arguments, before = sys.argv, (sys.stdout, sys.stderr)
        with open(stdout.name, "w") as log:
            sys.argv, sys.stdout, sys.stderr = ["metavib", *command[3:]], log, log
            try:
                cli.main()
                self.returncode = 0
            except SystemExit as end:
                self.returncode = end.code or 0
            finally:
                sys.argv, (sys.stdout, sys.stderr) = arguments, before

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self) -> int:
        return self.returncode


def instead(start) -> SimpleNamespace:
    """What `reproduction.queue` sees of the module `subprocess`; the rest of the program sees the real one."""
    return SimpleNamespace(Popen=start, STDOUT=subprocess.STDOUT)

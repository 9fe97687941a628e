"""A private PostgreSQL for tests and benchmarks: its own folder, its own socket, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs, where they are installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += [p for place in PLACES for p in sorted(Path("/").glob(place.lstrip("/")))]
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


MISSING = "PostgreSQL is not installed: apt-get install postgresql"


class Postgres:
    """A cluster of one database, reached through a socket in its folder."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None, MISSING
        self.bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="metavib-postgres-"))
        self.user = self._someone()
        if os.getuid() == 0:
            shutil.chown(self.folder, self.user)
        self._run("initdb", "-D", self._data, "-U", "metavib", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://metavib@/postgres?host={self.folder}"

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        settings = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=60 -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self, mode: str = "fast") -> None:
        """Mode "immediate" is a crash: connections break and the log is replayed at the next start."""
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-m", mode, "stop")

    def remove(self) -> None:
        subprocess.run([*self._as_user(), str(self.bin / "pg_ctl"), "-D", self._data, "-m", "immediate", "stop"])
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = (*self._as_user(), str(self.bin / program), *arguments)
        with open(
            self.folder.parent / f"{self.folder.name}.out", "w+"
        ) as out:  # not a pipe, which the server would keep
            done = subprocess.run(command, stdout=out, stderr=out, cwd="/", timeout=120)
            out.seek(0)
            said = out.read()
        os.unlink(out.name)
        assert not done.returncode, f"{program}: {said}"

    def _as_user(self) -> list[str]:
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return []
        return ["setpriv", f"--reuid={self.user}", f"--regid={pwd.getpwnam(self.user).pw_gid}", "--clear-groups"]

    @staticmethod
    def _someone() -> str:
        try:
            return pwd.getpwnam("postgres").pw_name
        except KeyError:
            return "nobody"

"""From the command line's words to a running server."""

import logging
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address

import torch
import uvicorn

from metavib.serve.app import application
from metavib.serve.engine import Engine
from metavib.serve.guard import LOG, JsonLines
from metavib.serve.service import Limits, Service
from metavib.serve.store import Store, StoreError
from metavib.training import bundled, targets


def resolve(model: str, *, pixels: int) -> list[Engine]:
    """The models that a word of the command line names.

    It is the folder of a run, or a model that comes with the package; `NAME=FOLDER` calls it otherwise. A folder of
    runs of several targets is a model for each, `NAME.TARGET`.

    Args:
        model: the word.
        pixels: of the largest picture it may be sent.
    """
    name, given, folder = model.rpartition("=")
    path = bundled.folder(folder)
    if not path.is_dir():
        known = f", and these come with the package: {', '.join(bundled.names())}" if bundled.names() else ""
        raise FileNotFoundError(f"{folder} is no run folder; `metavib train` makes one{known}.")
    called = name if given else path.absolute().name
    each = {f"{called}.{target}" if target else called: run for target, run in targets.folders(path).items()}
    return [Engine.from_run(name, run, pixels=pixels) for name, run in each.items()]


def serve(
    models: Sequence[str],
    *,
    store: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    threads: int = 1,
    open_page: bool = False,
) -> None:
    """Serves until it is told to stop (SIGTERM or Ctrl-C), and then finishes what was begun.

    Args:
        models: words that `resolve` understands.
        store: where tasks are kept, an address that `Store` understands.
        host: the address to listen at.
        port: the port to listen at; 0 for any that is free.
        token: what clients must show; required where others than this machine could come.
        limits: of requests.
        threads: of one numeric operation.
        open_page: whether to open the page in a browser.
    """
    limits = limits or Limits()
    check_token(host, token)
    engines = [engine for model in models for engine in resolve(model, pixels=limits.pixels)]
    with _listening(host, port) as listening:
        app = application(Service(engines, _opened(store), limits), token=token)
        address = f"http://{'localhost' if _local(host) else host}:{listening.getsockname()[1]}"
        names = [engine.name for engine in engines]
        _log()
        LOG.info("serving", extra={"fields": {"address": address, "models": names}})
        print(f"metavib serves {', '.join(names)}: open {address} (Ctrl-C to stop)", flush=True)
        torch.set_num_threads(threads)
        sys.setswitchinterval(5e-4)  # the event loop waits this long at most for a thread that computes
        for sign in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again, once all is finished
            signal.signal(sign, lambda *_: None)
        if open_page:
            webbrowser.open(address)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=round(limits.seconds) + 5,
            limit_concurrency=4 * limits.waiting,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _opened(store: str) -> Store:
    try:
        return Store(store)
    except StoreError as error:
        cause = getattr(error.__cause__, "orig", None) or error.__cause__
        raise ValueError(f"the store could not be opened: {cause}") from error


def check_token(host: str, token: str | None) -> None:
    """Refuses to listen to others without a token."""
    if token is None and not _local(host):
        raise ValueError(
            f"others than this machine can reach {host}: choose a token that they must show, with --token-file, or "
            f"the variable METAVIB_TOKEN, for example {secrets.token_urlsafe(24)}."
        )
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError("a token is at least 16 printable ASCII characters without spaces.")


def _local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sends at once
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with listening:
        try:
            listening.bind((host, port))
            listening.listen(2048)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"cannot listen at {host}, port {port}: {reason}. Choose another --port.") from error
        yield listening


def _log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("metavib.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)

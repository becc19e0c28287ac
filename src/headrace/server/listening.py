"""Where a server listens: a port or a unix socket, plain or with TLS."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import socket
import ssl
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.config import ServerConfig
from headrace.errors import AddressTaken, ConfigError

__all__ = ["Tls", "base_url", "bind", "bound"]

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def bound(config: ServerConfig) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet. A unix socket's file is removed at the end. Raises ConfigError for an
    address that cannot be bound, or that another server has which does not listen yet either."""
    if config.uds is None:
        with contextlib.closing(bind(config.host, config.port)) as listener:
            host, port = listener.getsockname()[:2]
            fault = f"cannot listen on {config.host}:{port}: another server starts there; choose another --port"
            with _claimed(f"{host} {port}", fault):
                yield listener
        return
    path = Path(config.uds)
    with (
        _claimed(
            str(path.absolute()), f"--uds: another server listens on {path}, or starts there: choose another name"
        ),
        contextlib.closing(_bind_file(path)) as listener,
    ):
        made = path.stat().st_ino
        try:
            yield listener
        finally:
            # Another server may have taken the name by now.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == made:
                    path.unlink()


@contextlib.contextmanager
def _claimed(what: str, fault: str) -> Iterator[None]:
    """Hold an address while its server loads: one that is bound and does not listen can be bound again. The claim is a
    name of the kernel's, which ends with the process; systems without such names have no claims."""
    if sys.platform != "linux":
        yield
        return
    name = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0headrace-{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise AddressTaken(fault) from None
        yield


def bind(host: str, port: int) -> socket.socket:
    """A bound socket of a port. An IPv6 address may have brackets."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        fault = AddressTaken if getattr(error, "errno", None) == errno.EADDRINUSE else ConfigError
        raise fault(f"cannot listen on {host}:{port}: {why}; choose another --port or --host") from None
    return listener


def _bind_file(path: Path) -> socket.socket:
    """A bound unix socket. The file of a server that has ended is replaced; the umask decides who may connect."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("--uds: this system has no unix sockets: use --host and --port")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        fault = AddressTaken if error.errno == errno.EADDRINUSE else ConfigError
        raise fault(f"--uds: cannot listen on {path}: {error.strerror or error}") from None
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--uds: {path} is there already, and is no socket: choose another name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                os.unlink(path)
                return
            raise
    raise AddressTaken(f"--uds: another server listens on {path}: choose another name")


def base_url(config: ServerConfig, listener: socket.socket) -> str:
    """The address as a client on this machine writes it."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host = config.host.removeprefix("[").removesuffix("]")
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme, port = "http" if config.ssl_certfile is None else "https", listener.getsockname()[1]
    place = f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"
    return f"{scheme}://{place}{config.root_path}"


class Tls:
    """The certificate and its key."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """`key` None: it is in the file of the certificate. Raises ConfigError."""
        self._files = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        _check_readable("--ssl-certfile", certificate)
        if key is not None:
            _check_readable("--ssl-keyfile", key)
        try:
            context.load_cert_chain(certificate, key, password=self._no_password)
        except ssl.SSLError as error:
            where = f"{certificate}" if key is None else f"{certificate} and {key}"
            why = error.reason or "they hold no certificate and key in the form PEM"
            raise ConfigError(f"--ssl-certfile, --ssl-keyfile: {where} cannot be used: {why}") from None

    def _no_password(self) -> str:
        raise ConfigError(
            "--ssl-keyfile: the key is encrypted, and nobody is there to type its password: store it without one"
        )

    def reload(self) -> None:
        """Read the files again, for connections to come. If they are wrong, the old ones stay and the log says why."""
        try:
            # Tried on a context of its own first: a failure halfway would leave a certificate without its key.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except ConfigError as error:
            _log.error("the certificate stays as it was: %s", error)
        else:
            _log.info("certificate read from %s", self._files[0])


def _check_readable(option: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {file} cannot be read: {error.strerror or error}") from None

"""`/metrics` over HTTP for Prometheus, and `/healthz`. The server's thread is the library's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server

from ..errors import CoordinatorError
from ..runtime import Runtime

log = logging.getLogger(__name__)

TRY_AGAIN_S = 10.0
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class MetricsServer:
    """Serves one registry, and the operating system's figures of the process.

    :param port: 0 disables the server.
    :param unhealthy: why the process is not at work, empty when it is; called by another thread.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        runtime: Runtime,
        unhealthy: Callable[[], str] = lambda: "",
    ) -> None:
        self._unhealthy = unhealthy
        self._registry = registry
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._host = host
        self._port = port
        self._runtime = runtime
        self._server: Any = None
        self._process: ProcessCollector | None = None
        self._not_before = float("-inf")
        self._complaint = ""

    def start(self) -> None:
        """Start serving.

        :raises CoordinatorError: when the address cannot be bound.
        """
        if self._port == 0 or self._server is not None:
            return
        try:
            server, _ = start_http_server(self._port, self._host, self._registry)
        except (OSError, OverflowError) as error:
            raise CoordinatorError(
                f"cannot serve metrics at {self._host}:{self._port} ({getattr(error, 'strerror', None) or error}): "
                "choose a free metrics_port, and an address of this host as metrics_host"
            ) from error
        # An error during a scrape concerns the client; the library would print a traceback.
        setattr(server, "handle_error", _ignore)  # noqa: B010  mypy reports the assignment as a redefinition
        server.set_app(self._answer)
        self._server = server
        self._process = ProcessCollector(registry=self._registry)
        log.info("metrics server started: host=%s port=%d", self._host, self._port)

    def _answer(self, environ: dict[str, Any], respond: Any) -> Iterable[bytes]:
        """`/metrics`, `/healthz` (503 with the reason), and 404 for every other path: the library serves any."""
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, respond)
        if path != "/healthz":
            respond("404 Not Found", [_TEXT])
            return [b"not found: there are /metrics and /healthz\n"]
        why = self._unhealthy()
        respond("503 Service Unavailable" if why else "200 OK", [_TEXT])
        return [f"{why or 'ok'}\n".encode()]

    def keep(self) -> None:
        """Start unless started; a failure is logged once and retried later: metrics never end a process."""
        if self._server is not None or self._port == 0 or self._runtime.monotonic() < self._not_before:
            return
        self._not_before = self._runtime.monotonic() + TRY_AGAIN_S
        try:
            self.start()
            self._complaint = ""
        except CoordinatorError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning("metrics server failed, retrying: host=%s port=%d reason=%s", self._host, self._port, error)

    def close(self) -> None:
        """Free the port."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._process is not None:
            self._registry.unregister(self._process)
            self._process = None

    def __enter__(self) -> MetricsServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _ignore(request: object, address: object) -> None:
    log.debug("metrics read aborted: reader=%s", address)

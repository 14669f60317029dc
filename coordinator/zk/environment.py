"""The environment's variables of this project, and those of Kubernetes that look like them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache

log = logging.getLogger(__name__)

PREFIX = "ZK_GROUP_"
"""Of every variable: then the field's name in capitals."""

_OF_SERVICE = re.compile(r".+_SERVICE_(?:HOST|PORT(?:_\w+)?)|.+_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?")
_URL = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def variables(names: Iterable[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables among `names` that are set, without those that Kubernetes writes for a Service, with a warning.

    It writes `ZK_GROUP_METRICS_PORT=tcp://10.0.0.1:9400`, `ZK_GROUP_METRICS_SERVICE_HOST` and so on into each pod, for
    a Service `zk-group-metrics` (enableServiceLinks).
    """
    environment = os.environ if env is None else env
    return {name: environment[name] for name in names if name in environment and not _is_link(name, environment[name])}


def _is_link(name: str, value: str) -> bool:
    is_link = bool(_OF_SERVICE.fullmatch(name)) or (name.endswith("_PORT") and bool(_URL.fullmatch(value)))
    if is_link:
        _warn(name)
    return is_link


@cache
def _warn(name: str) -> None:
    log.warning("environment variable ignored: variable=%s reason=%s", name, "Kubernetes writes it for a Service")

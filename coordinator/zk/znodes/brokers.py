"""Registered brokers of Kafka in ZooKeeper mode, `/brokers/ids/[broker]`."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from ..errors import BadData
from ..store import Store
from .json_fields import Fields
from .paths import Brokers

log = logging.getLogger(__name__)

PLAINTEXT = "PLAINTEXT"


def registered_brokers(store: Store, brokers: Brokers, protocol: str = PLAINTEXT) -> list[str]:
    """The addresses, `host:port`, of the registered brokers for `protocol` (Kafka's `security.protocol`).

    An unreadable broker znode is logged and skipped: every broker knows all others.

    :raises StoreError: when ZooKeeper does not answer.
    """
    listing = store.children(brokers.ids)
    paths = [brokers.id(name) for name in sorted(listing.names)] if listing else []
    found: list[str] = []
    for path, node in zip(paths, store.get_many(paths), strict=True):
        if node is None:
            continue
        try:
            found += addresses(path, node.data, protocol)
        except BadData as error:
            log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
    return found


def addresses(where: str, data: bytes, protocol: str = PLAINTEXT) -> list[str]:
    """Addresses of one broker for `protocol`; the znode maps endpoint names to protocols.

    :raises BadData: when `data` is no broker registration.
    """
    fields = Fields.parse(where, data)
    protocols = fields.texts("listener_security_protocol_map")
    found = []
    for endpoint in fields.items("endpoints"):
        if not isinstance(endpoint, str):
            raise fields.bad("endpoints", "a list of listener://host:port")
        listener, _, place = endpoint.partition("://")
        if protocols.get(listener, listener).upper() == protocol.upper():
            found.append(_address(fields, place))
    return found


def _address(fields: Fields, place: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise fields.bad("endpoints", "a list of listener://host:port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""Kafka's brokers as they register themselves in ZooKeeper mode, `/brokers/ids/[broker]`: where clients find them."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from .errors import BadData
from .fields import Fields
from .paths import Brokers
from .store import Store

log = logging.getLogger(__name__)

PLAINTEXT = "PLAINTEXT"


def registered_brokers(store: Store, brokers: Brokers, protocol: str = PLAINTEXT) -> list[str]:
    """The addresses, `host:port`, at which the registered brokers speak `protocol` (Kafka's `security.protocol`).

    A broker whose znode cannot be read is said and left out: the others know it.

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
            log.warning("bad data set aside: path=%s problem=%s", path, error)
    return found


def addresses(where: str, data: bytes, protocol: str = PLAINTEXT) -> list[str]:
    """Where one broker speaks `protocol`: an endpoint's name stands for a protocol, by a map that the znode has.

    :raises BadData: when `data` is no broker's.
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

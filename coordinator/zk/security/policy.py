"""The access policy in ZooKeeper: which identities are coordinators, operators, readers and a group's members."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import BadData, UsageError
from ..znodes.json_fields import Fields, compact
from ..znodes.names import is_name, shown

OPEN: Final = "open"
SECURE: Final = "secure"
CLOSED: Final = "closed"
MOST_IDENTITIES: Final = 8
LONGEST_IDENTITY: Final = 250
MOST_BYTES: Final = 1000
_PARTIES: Final = ("coordinators", "operators", "readers", "members")
_SCHEMES: Final = ("digest", "sasl", "x509", "ip")
_DIGEST: Final = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=")


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """`/consumers/acl`, and `acl` of each group: that one repeats the fields of the first, and has the group's own.

    Identities are ZooKeeper's, `scheme:id`: `digest:user:BASE64`, `sasl:user`, `x509:CN=...`.

    :ivar is_secure: whether znodes get the ACLs of `rights.py`; otherwise they are open to the world.
    :ivar is_read_open: whether the world may read.
    :ivar members: the group's members; empty in `/consumers/acl`.
    :ivar regions: the consistent regions that the group may be bound to.
    """

    is_secure: bool = False
    is_read_open: bool = True
    coordinators: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, where: str, data: bytes) -> AclPolicy:
        """
        :raises BadData: when it is malformed.
        """
        fields = Fields.parse(where, data)
        acl, acl_read = fields.text("acl", OPEN, most=64), fields.text("acl_read", OPEN, most=64)
        if acl not in (OPEN, SECURE):
            raise fields.bad("acl", f"{OPEN} or {SECURE}")
        if acl_read not in (OPEN, CLOSED):
            raise fields.bad("acl_read", f"{OPEN} or {CLOSED}")
        parties = {}
        for party in _PARTIES:
            parties[party] = fields.strings(party, LONGEST_IDENTITY)
            if len(parties[party]) > MOST_IDENTITIES or not all(map(is_identity, parties[party])):
                raise fields.bad(party, f"a list of {MOST_IDENTITIES} identities at most, as sasl:user")
        if sum(len(one) + 20 for each in parties.values() for one in each) > MOST_BYTES:
            raise BadData(
                f"{where}: the identities have over {MOST_BYTES} bytes, and 400 znodes of a multi get them all"
            )
        regions = fields.strings("regions", 249)
        if not all(map(is_name, regions)):
            raise fields.bad("regions", "a list of names")
        if acl == SECURE and not (parties["coordinators"] and parties["operators"]):
            raise fields.bad("acl", "open without coordinators and operators")
        return cls(acl == SECURE, acl_read == OPEN, **parties, regions=regions)

    def to_bytes(self) -> bytes:
        """One line of JSON."""
        return compact(
            {
                "acl": SECURE if self.is_secure else OPEN,
                "acl_read": OPEN if self.is_read_open else CLOSED,
                **{name: list(getattr(self, name)) for name in (*_PARTIES, "regions")},
            }
        )


def is_identity(text: str) -> bool:
    """Whether it is `scheme:id` of a scheme whose identities are of one client; a digest must be hashed."""
    scheme, _, rest = text.partition(":")
    if scheme not in _SCHEMES or not rest or not rest.isprintable() or len(text) > LONGEST_IDENTITY:
        return False
    return scheme != "digest" or _DIGEST.fullmatch(rest) is not None


def checked_identities(option: str, texts: Iterable[str]) -> tuple[str, ...]:
    """The identities of an option.

    :raises UsageError: when one is malformed, or there are more than `MOST_IDENTITIES`. A malformed one is not
        repeated: it may be a password.
    """
    found = tuple(dict.fromkeys(texts))
    for text in found:
        if not is_identity(text):
            scheme, colon, _ = text.partition(":")
            what = f"of scheme {shown(scheme[:20])}" if colon else "without scheme"
            raise UsageError(
                f"{option}: an identity {what} is not digest:USER:HASH, sasl:USER or "
                "x509:SUBJECT; zk-coordinator acl identity prints those of a zk_auth_file"
            )
    if len(found) > MOST_IDENTITIES:
        raise UsageError(f"{option}: {len(found)} identities; the limit is {MOST_IDENTITIES}")
    return found

"""Files without checksums, byte for byte as the release before them wrote them."""

from __future__ import annotations

import zlib
from base64 import b64decode


def _unpacked(text: str) -> bytes:
    return zlib.decompress(b64decode(text))


LOG_FILE = _unpacked(
    """
    eNrtVU0vQ0EUve956mkeeUGkC5EuurCS1oaFRcVSE41U2NHEBKnS9EPLqktLCz/B0sKPsLS08EMsxXNm5k5NB8HebebNvTPnnLkzczNd29ra3CkQ
    JbCyTxSTtDRNUopGKYQH84LBeIRvwON95ROBRiX2H6CTZV9yCsv5IZMqU2iXtb3D5lmnsXgquqLV3uu0CKqR0g6ZKzU8tCW0CZvTPOsCjvyIegCs
    or3Av2fO3VuSgBnNwJ+zdGQ8hnYkqgei2aJb4J41diKD8ay1n6KFFyeiLk7b9ARsmCh8IPPLMJ44l/PqSUegfwUur3GjMesY3AhaTVxQFvMVjfEl
    ZsHCyL22j+s4lmq9UbloSE15NiGyCTXEk7neaH5a8nMWf9zmMzfF5yp3F3Ae25V1ev7Ffh6BibGLECpjqgJirofPPLO/QP10XYW+PgNpEc1yZUVK
    iUYCxb8mY2nE0aDGSp6uBZ8+bNryPe7Dgb62jDOfdeIFB7/CvVmnSMNm4pj7sjNfdvLYddbbd9ZrOPzvYqPXc/T6Dr7v4K8cvJnznfHvYvoh9r7Q
    /2vsWXHti3nfWu88by5iPpNLp6i4UfqVromPnLjAfqLqX99rhCpNqcqM+Z4CVRc56w3Z54Ri7q+Hsvh/H//fx7+9jz0c5pr6D34HIOrW+g==
    """
)
"""Partition 0 of topic `flights`: offset 0 with a key, value v0, a header and time 1,700,000,000,000 ms; offset 1 with
nulls and time 5,000."""

SEGMENT = _unpacked(
    """
    eNrtVj9P21AQv2ecxA2m8oAqC1UVAwNjkRg6GrVDJZBaIVA7EsFLbZEQi7yiIPUDMDJ06AdgyJiRoUPHDB079EP0M9S9e+9MHgeorcTIRed79+53
    f975bGdje/vNuzWACikPABIgakMMTWhAhCskFaIOqEV4DfkKVibo80MBjJFz5HXkX7g/Yczy76rCAPEirp/yHkKA9BZyrjsH+ngIKeK2HHYhJT/G
    YnjIPLzu6b4+MvAasZ8cPqSaU8YTNZBPOr2PGmWJmAuHayQcp8bNIR/qU/iM9qnDBImXm2gB2RR9PTSdfrlzWlLM9xVhQREO7Fq1yW/F83vk+9le
    UUddB+lUIeff3XkJr6pZbv8cTeRBtzvUBuA756ReGA8vc5adY1OYYnDEOSPsmsvp6p1Us17InplBWeyjvEDMz+rvvaWaEuxohJW27IQkPD83/epe
    h/bn5m0cuPtBFMMTnrjYRoK50PpPoaY26rGdPprJr8rNagAzWvLWimV0Fd9RKuzLQl8V+Bcs6zwZXKdM4N+yfMxyT+D3RF25sNd6wnIk7CNhPxP2
    MxH/XJzvi6h3LPzv0ut4ExHvUuAvBf6bwBPNe/1Uor9Sh3vW1S31/K+uPP3wFnvg5Tt5PttveXPR7RUfcjNkATfoKl72LF1pNyHb3Pqnemo9F/oa
    ryv3HrHzE+PT17RPXMLzEMK6904hvxEfZMJy6sV9+B48fA/u63twjjd2w/4X+QNFt/dS
    """
)
"""The same records, sealed."""

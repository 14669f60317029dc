"""A consumer in a consistent region: drains, checkpoints and resets on the member's side (seed 002).

Imports all of `consumer` but `spark` and `cli`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .consumer_operator import ConsumerOperator as ConsumerOperator
    from .consumer_operator import Processor as Processor


def __getattr__(name: str) -> Any:
    """`ConsumerOperator` and `Processor`, loaded on access: they import the consumer, which imports this package."""
    if name not in ("ConsumerOperator", "Processor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".consumer_operator", __name__), name)

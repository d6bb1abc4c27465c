"""Checkpoints of anyone's model and their images → which directions training left, and how sure that is."""

from antishortcut.analysis.audit import GROWN, PAPER, POOL, audit, fate

__all__ = ["GROWN", "PAPER", "POOL", "audit", "fate"]

"""Corruptions after CIFAR-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich 2019): fifteen, at five severities.

corrupt(images, "fog", 3)                       images (N, S, S, 3) → the same under fog, the same bytes every time
write_copies(test, 32, Path("cifar100-c"))      a folder in CIFAR-C's layout
find_copies(Path("CIFAR-100-C"), classes)       such a folder, ours or released, or ImageNet-C's folders
"""

from antishortcut.data.corruptions.constants import CHUNK, CORRUPTIONS, GROUPS, SEVERITIES, TABLES, VERSION, table_of
from antishortcut.data.corruptions.copies import (
    Copies,
    clean_chunk,
    contact_sheet,
    corrupt,
    find_copies,
    open_copies,
    write_copies,
)
from antishortcut.data.corruptions.weather import FROST, Frost, grown_frost, read_frost

__all__ = [
    "CHUNK", "CORRUPTIONS", "FROST", "GROUPS", "SEVERITIES", "TABLES", "VERSION", "Copies", "Frost", "clean_chunk",
    "contact_sheet", "corrupt", "find_copies", "grown_frost", "open_copies", "read_frost", "table_of", "write_copies",
]  # fmt: skip

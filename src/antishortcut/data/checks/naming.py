"""What an image is called when a person is told of it."""

from __future__ import annotations

from ...types import FileSet, ImageSet
from .finding import Finding


def name_of(finding: Finding, part: str, at: int, mask: bool = False) -> str:
    """A file below the folder it was found in, or the number of an image in memory."""
    images = finding.parts[part]
    return f"{part} {at}" if isinstance(images, ImageSet) else below(finding, images, at, mask)


def below(finding: Finding, images: FileSet, at: int, mask: bool = False) -> str:
    path = images.masks[at] if mask else images.paths[at]
    return str(path.relative_to(finding.base) if finding.base is not None else path)

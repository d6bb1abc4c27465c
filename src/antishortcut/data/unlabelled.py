"""Images without labels: all below a folder, in any layout, alone or beside a labelled data set."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from antishortcut.data.image_io import decode
from antishortcut.data.readers import FOREIGN, SUFFIXES, RawDataset, Request, images_below
from antishortcut.data.segmentation import names_in
from antishortcut.errors import UserError, plural
from antishortcut.fileio import near_folder
from antishortcut.types import UNLABELLED, AnySet, FileSet, ImageSet

MOST = 10**6  # classes


def open_unlabelled(request: Request) -> RawDataset:
    """The images below a folder. The classes are the teacher's: as many as data.options.classes, 0 for none.

    classes.txt or classes.json in the folder names them.
    """
    count, images = request.options["classes"], list_unlabelled(request.path)
    if len(images) < 3:
        raise UserError(f"{request.path} has {plural(len(images), 'image')}; at least three are needed")
    if count != int(count) or not 0 <= count <= MOST:
        raise UserError(f"data.options.classes is a whole number from 0 to {MOST:,}, not {count:,g}")
    classes = names_in(request.path) if count else ()
    if classes and len(classes) != count:
        raise UserError(f"{request.path} names {len(classes)} classes, but data.options.classes is {count:,g}")
    classes = classes or tuple(f"class {number}" for number in range(int(count)))
    return RawDataset(classes, images, {}, base=request.path)


def list_unlabelled(folder: Path, used: Iterable[Path] = ()) -> FileSet:
    """All images below a folder but those that are already used."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}{near_folder(folder) or ''}")
    taken = {os.path.realpath(path) for path in used}
    paths = [path for path in images_below(folder) if not taken or os.path.realpath(path) not in taken]
    if not paths:
        more = " that the labelled data do not have already" if taken else ""
        kinds = f"read are {', '.join(sorted(SUFFIXES))}, not {', '.join(sorted(FOREIGN)[:3])} and the like"
        raise UserError(f"no images in {folder}{more}; {kinds}")
    return FileSet(tuple(paths), torch.full((len(paths),), UNLABELLED))


def with_unlabelled(train: AnySet, images: AnySet, size: int, root: Path | None) -> AnySet:
    """A training set and, behind it, images without labels; held as the training set is."""
    label = torch.cat([train.label, images.label])
    if isinstance(train, ImageSet):
        if isinstance(images, FileSet):
            images = decode(images, size, root)
        return ImageSet(torch.cat([train.image, images.image]), label)
    assert isinstance(images, FileSet)
    return FileSet(train.paths + images.paths, label)

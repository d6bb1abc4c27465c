"""groups:PATH against small folders in Waterbirds' layout, and the groups of a set."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antishortcut.data import open_sets
from antishortcut.data.groups import groups_of, shares
from antishortcut.errors import UserError
from antishortcut.types import DataSplits, FileSet, ImageSet
from tests.data.official import in_memory, picture, refused

HEADER = "img_id,img_filename,y,split,place,place_filename"
ROWS = (  # y, split, place
    (0, 0, 0), (0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 0),
    (0, 1, 0), (1, 1, 1),
    (0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1), (1, 2, 1),
)  # fmt: skip


def make_birds(folder: Path) -> Path:
    lines = [HEADER]
    for at, (y, split, place) in enumerate(ROWS):
        name = f"{at % 2:03}.Some_Bird/{at}.jpg"
        picture(folder / name, size=(12, 10))
        lines.append(f"{at},{name},{y},{split},{place},/b/beach/{at}.jpg")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def birds(folder: Path) -> DataSplits:
    return open_sets(f"groups:{folder}", None)


def test_waterbirds(tmp_path: Path) -> None:
    sets = birds(make_birds(tmp_path))
    assert (sets.classes, sets.image_size, sets.val) == (("0", "1"), 224, None)
    assert list(sets.tests) == ["test", "validation"]
    for images, split in ((sets.train, 0), (sets.tests["validation"], 1), (sets.tests["test"], 2)):
        rows = [(y, place) for y, number, place in ROWS if number == split]
        assert images.label.tolist() == [y for y, _ in rows]
        assert images.cues["place"].tolist() == [place for _, place in rows]
        assert images.label.dtype == images.cues["place"].dtype == torch.int64
    assert isinstance(sets.train, FileSet)
    assert [path.name for path in sets.train.paths] == [f"{at}.jpg" for at in range(6)]
    small = open_sets(f"groups:{tmp_path}", tmp_path, image_size=16, train_limit=4, val_fraction=0.2)
    assert in_memory(small.train).image.shape == (4, 3, 16, 16)
    assert set(small.train.cues) == set(in_memory(small.val).cues) == {"place"}


def test_class_names_and_no_validation(tmp_path: Path) -> None:
    folder = make_birds(tmp_path)
    (folder / "classes.txt").write_text("landbird\nwaterbird\n")
    table = folder / "metadata.csv"
    table.write_text("\n".join(row for row in table.read_text().splitlines() if row.split(",")[3] != "1"))
    sets = birds(folder)
    assert sets.classes == ("landbird", "waterbird")
    assert list(sets.tests) == ["test"]
    names = ("landbird, place 0", "landbird, place 1", "waterbird, place 0", "waterbird, place 1")
    assert groups_of(sets.train, sets.classes)[1] == names
    for text in ("landbird\n", "a\nb\nc\n", "a\na\n"):
        (folder / "classes.txt").write_text(text)
        refused("classes.txt has . different names for the 2 classes", f"groups:{folder}", None)
    (folder / "classes.txt").write_text("\n")
    refused("classes.txt is empty", f"groups:{folder}", None)


def test_other_second_attributes(tmp_path: Path) -> None:
    table = make_birds(tmp_path) / "metadata.csv"
    good = table.read_text()
    table.write_text(good.replace("place,", "Male,"))  # CelebA's
    assert set(birds(tmp_path).train.cues) == {"Male"}
    table.write_text("\ufeff" + good.replace("img_id", "").replace("place,", "Male,").replace("\n", "\r\n"))
    assert set(birds(tmp_path).train.cues) == {"Male"}  # as spreadsheets and pandas write it
    rows = good.replace("place,", "Male,").splitlines()
    table.write_text("\n".join([rows[0] + ",Young", *(row + ",1" for row in rows[1:])]))
    refused("several: 'Male', 'Young'; name one place", f"groups:{tmp_path}", None)
    table.write_text("\n".join(row.rsplit(",", 2)[0] for row in rows))
    refused("has none; name one place", f"groups:{tmp_path}", None)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("img_filename", "file", "no column img_filename; expected"),
        ("3,001.Some_Bird/3.jpg,1", "3,001.Some_Bird/3.jpg,x", "line 5: y is 'x', not a whole number"),
        ("3,001.Some_Bird/3.jpg,1", "3,001.Some_Bird/3.jpg,999999999", "no training image has y = 2"),
        ("8,000.Some_Bird/8.jpg,0", "8,000.Some_Bird/8.jpg,2", "line 10: y is 2, but no training image"),
        ("3,001.Some_Bird/3.jpg,1,0", "3,001.Some_Bird/3.jpg,1,3", "line 5: split is 3"),
        ("3,001.Some_Bird/3.jpg,1,0,1", "3,001.Some_Bird/3.jpg,1,0,", "line 5: place is ''"),
        ("3,001.Some_Bird/3.jpg,1", "3,001.Some_Bird/4.jpg,1", "line 5: no image file '001.Some_Bird/4.jpg'"),
        ("3,001.Some_Bird/3.jpg", "3,/etc/passwd", "line 5: no image file"),
        ("3,001.Some_Bird/3.jpg", "3,001.Some_Bird/../../3.jpg", "line 5: no image file"),
        ("8,000.Some_Bird/8.jpg", "8,./001.Some_Bird/3.jpg", "line 10: .* is in split 0 already"),
        ("3,001.Some_Bird/3.jpg,1", "3,001.Some_Bird/3.jpg,1,1", "line 5: the first line has 6 fields"),
        (",2,", ",1,", r"no image with split 2 \(test\)"),
        (",0,0,", ",0,1,", "no training image has y = 0"),
    ],
)
def test_errors_in_the_table(tmp_path: Path, old: str, new: str, match: str) -> None:
    table = make_birds(tmp_path) / "metadata.csv"
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new))
    refused(match, f"groups:{tmp_path}", None)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "no column img_filename, y, split"),
        (HEADER.encode() + b"\n", "no image with split 0"),
        (b"\xff\xfe\x00", "cannot read .*metadata.csv"),
        (b"a" * 200_000, "is not a table .field larger"),
        (None, "cannot read .*metadata.csv .No such file.*expected"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, content: bytes | None, match: str) -> None:
    if content is not None:
        (tmp_path / "metadata.csv").write_bytes(content)
    refused(match, f"groups:{tmp_path}", None)


def as_set(label: list[int], **cues: list[int]) -> ImageSet:
    image = torch.zeros(len(label), 3, 1, 1, dtype=torch.uint8)
    return ImageSet(image, torch.tensor(label), {name: torch.tensor(value) for name, value in cues.items()})


def test_groups_of_textures() -> None:
    group, names = groups_of(as_set([0, 0, 1], texture=[0, 1, 0]), ("A", "E"))
    assert names == ("A, texture differs", "A, texture agrees", "E, texture differs")
    assert group.tolist() == [1, 0, 2]
    with pytest.raises(UserError, match="no groups"):
        groups_of(as_set([0]), ("A", "E"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=30))
def test_groups_equal_those_of_a_loop(rows: list[tuple[int, int]]) -> None:
    classes = ("a", "b", "c", "d")
    images = as_set([y for y, _ in rows], place=[place for _, place in rows])
    group, names = groups_of(images, classes)
    assert [names[at] for at in group.tolist()] == [f"{classes[y]}, place {place}" for y, place in rows]
    counted = Counter(f"{classes[y]}, place {place}" for y, place in rows)
    assert shares(images, classes) == {name: counted[name] / len(rows) for name in names}
    assert len(names) == len(counted)  # empty groups are left out

"""Any folder of class folders: which class a folder is, what is left out, and what is refused."""

from pathlib import Path

import pytest

from antishortcut.data.shifts import match_classes, open_class_folders
from antishortcut.errors import UserError
from tests.data.official import paths_of, picture

CLASSES = ("polar bear", "cat", "Dog", "owl")


def make(folder: Path, *classes: str, count: int = 2) -> Path:
    for name in classes:
        for at in range(count):
            picture(folder / name / f"{at}.png", size=(8, 8))
    return folder


@pytest.mark.parametrize(
    ("present", "label"),
    [
        (["owl", "cat"], {"owl": 3, "cat": 1}),
        (["Polar_Bear", "CAT", "dog"], {"Polar_Bear": 0, "CAT": 1, "dog": 2}),
        (["polar bear", "Polar_Bear"], {"polar bear": 0}),  # the exact name is there: the other is no class
        (["CAT", "Cat"], {}),  # either may be meant
        (["Cat", "cat", "zebra"], {"cat": 1}),
        (["cats", "polarbear", ""], {}),
    ],
)
def test_folders_are_matched_by_name(present: list[str], label: dict[str, int]) -> None:
    assert match_classes(present, CLASSES) == label


def test_a_name_of_two_classes_is_none_and_another_name_of_theirs_is_one() -> None:
    classes, wnids = ("crane", "crane", "Kite", "kite"), ("n1", "n2", "n3", "n4")
    assert match_classes(["crane", "n2", "KITE", "kite", "N3"], classes, wnids) == {"n2": 1, "kite": 3, "N3": 2}


def test_accents_match_as_another_system_writes_them() -> None:
    assert match_classes(["U\u0308bung"], ["\u00dcbung"]) == {"U\u0308bung": 0}


@pytest.mark.parametrize("part", ["", "test", "val", "Test"])
def test_fewer_and_other_classes(tmp_path: Path, part: str) -> None:
    place = make(tmp_path / "set" / part, "owl", "Cat", "zebra", "yak")
    (place / "Dog").mkdir()  # without images
    (place / "notes.txt").write_text("no class")
    shift = open_class_folders("rain", tmp_path / "set", CLASSES)
    assert [CLASSES[at] for at in shift.images.label.tolist()] == [
        path.parent.name.lower() for path in paths_of(shift.images)
    ]
    assert (shift.overlap, shift.allowed.tolist(), shift.source) == (
        ("cat", "owl"),
        [False, True, False, True],
        "given",
    )
    assert shift.facts == {
        "folder": str(tmp_path / "set"), "overlap": ["cat", "owl"], "overlap_count": 2, "absent": ["polar bear", "Dog"],
        "unknown": ["yak", "zebra"], "renamed": {"Cat": "cat"}, "folder_classes": 5, "images": 4,
    }  # fmt: skip
    assert shift.note == (
        "rain: 4 images of 2 of the student's 4 classes; none of polar bear, Dog; "
        "not scored, since the student has no such class: yak, zebra"
    )


def test_a_folder_of_all_classes_needs_no_note(tmp_path: Path) -> None:
    shift = open_class_folders("rain", make(tmp_path, *CLASSES), CLASSES)
    assert (shift.note, shift.overlap) == ("", CLASSES)
    test = open_class_folders("rain", make(tmp_path / "both" / "test", "cat").parent, CLASSES)
    make(tmp_path / "both" / "val", "owl")
    assert open_class_folders("rain", tmp_path / "both", CLASSES).facts == test.facts  # test before val


def test_the_fingerprint_is_of_content_and_labels_wherever_the_folder_lies(tmp_path: Path) -> None:
    def mark(place: Path, classes: tuple[str, ...] = CLASSES) -> str:
        shift = open_class_folders("rain", place, classes)
        assert shift.hashed == "content"
        return shift.fingerprint

    place = make(tmp_path / "one", "cat", "owl")
    before = mark(place)
    assert mark(place.rename(tmp_path / "two")) == before
    assert mark(tmp_path / "two", CLASSES[::-1]) != before
    picture(tmp_path / "two" / "cat" / "0.png", size=(8, 8))
    assert mark(tmp_path / "two") != before


def test_links_lead_out_with_a_note_and_not_upward(tmp_path: Path) -> None:
    place, elsewhere = make(tmp_path / "set", "owl"), make(tmp_path / "disk", "cat")
    (place / "cat").symlink_to(elsewhere / "cat")
    (place / "everything").symlink_to("/")  # no class, so it is not looked into
    shift = open_class_folders("rain", place, CLASSES)
    assert len(shift.images) == 4
    assert f"links that lead out of the data folder: 1, such as cat → {elsewhere / 'cat'}" in shift.note
    (place / "Dog").symlink_to("/")
    with pytest.raises(UserError, match="Dog is a link to /, above it"):
        open_class_folders("rain", place, CLASSES)


def test_a_file_that_is_no_image_is_refused_when_the_folder_is_opened(tmp_path: Path) -> None:
    place = make(tmp_path, "cat")
    (place / "cat" / "ghost.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    with pytest.raises(UserError, match=r"cannot read the image .*ghost\.png \(none of JPEG, PNG"):
        open_class_folders("rain", place, CLASSES)


def test_folders_that_cannot_be_scored(tmp_path: Path) -> None:
    make(tmp_path / "other", "yak", "zebra")
    make(tmp_path / "split" / "train", "cat")
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    (tmp_path / "phone" / "cat").mkdir(parents=True)
    (tmp_path / "phone" / "cat" / "1.heic").touch()
    picture(tmp_path / "flat" / "1.png")
    for name, match in (
        ("othr", "no folder .*othr; did you mean .*other"),
        ("flat/1.png", "no folder .*1.png"),
        (
            "other",
            "has yak, zebra, but the student's classes are polar bear, cat, Dog and 1 more; folders must be named",
        ),
        ("split", "has train, .*did you mean .*split/train"),
        ("bare", "no images in .*bare/cat; expected <class>/<image>"),
        ("phone", "not read .1 .heic.: save as PNG"),
        ("flat", "no class folders in .*flat; its images lie right in it"),
    ):
        with pytest.raises(UserError, match=f"rain: .*{match}") as caught:
            open_class_folders("rain", tmp_path / name, CLASSES)
        assert "\n" not in str(caught.value)

import os
from pathlib import Path

import pytest

from lab.base.errors import UserError
from lab.base.files import check_new_folder, remove_folder, whole_folder

TAKEN = {
    "file": lambda place: place.write_text("x"),
    "device": os.mkfifo,
    "dangling-link": lambda place: place.symlink_to("nowhere"),
    "folder": lambda place: (place / "own").mkdir(parents=True),
}


@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_what_is_there_is_refused_and_stays(make, tmp_path):
    place = tmp_path / "taken"
    make(place)
    before = place.lstat()
    words = r"taken: is (a file|not empty); choose a new folder"
    with pytest.raises(UserError, match=words), whole_folder(place):
        pytest.fail("it was to be filled")
    assert place.lstat() == before and list(tmp_path.iterdir()) == [place]


def test_the_current_folder_is_filled_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with whole_folder(Path(".")) as made:
        (made / "own").touch()
    assert [*tmp_path.iterdir()] == [tmp_path / "own"]
    monkeypatch.chdir(tmp_path)
    for place in (".", "/"):
        with pytest.raises(UserError, match="is not empty"), whole_folder(Path(place)):
            pytest.fail("it was to be filled")


def test_the_folder_behind_a_link_is_filled(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to("disk")
    for name in ("first", "second"):
        with whole_folder(link, replaces=name == "second") as made:
            (made / name).touch()
        assert {*tmp_path.iterdir()} == {link, tmp_path / "disk"} and link.is_symlink()
        assert [*link.iterdir()] == [link / name]


def test_a_new_folder_gets_its_parents_and_a_replaced_one_is_no_file(tmp_path):
    place = tmp_path / "new" / "model"
    check_new_folder(place)
    assert not [*tmp_path.iterdir()]  # a run that is refused later leaves nothing
    for name in ("first", "second"):
        with whole_folder(place, replaces=name == "second") as made:
            (made / name).touch()
        assert [*place.rglob("*")] == [place / name]
    words = r"second: cannot be written \(Not a directory\); .* choose another place"
    with pytest.raises(UserError, match=words), whole_folder(place / "second", replaces=True):
        pass
    assert [*(tmp_path / "new").rglob("*")] == [place, place / "second"]
    below = place / "second" / "below"
    with pytest.raises(UserError, match="below: cannot be written"), whole_folder(below):
        pytest.fail("it was to be filled")


def test_folders_of_the_user_beside_a_new_one_stay(tmp_path):
    place = tmp_path / "model"
    for name in ("model", "model.tmp", "model.old.tmp"):
        (tmp_path / name).mkdir()
    for name in ("model.tmp", "model.old.tmp"):
        (tmp_path / name / "mine").touch()
    with whole_folder(place) as made:
        (made / "own").touch()
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")}
    assert names == {"model/own", "model.tmp/mine", "model.old.tmp/mine"}
    assert len([*tmp_path.iterdir()]) == 3


def test_what_a_killed_removal_left_does_not_stop_the_next_one(tmp_path):
    for name in ("run", "run.old.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    remove_folder(tmp_path / "run")
    assert not list(tmp_path.iterdir())

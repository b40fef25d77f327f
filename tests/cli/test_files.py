# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from transporters.cli.files import check_artifact, check_file, check_target, unverified, write_text
from transporters.errors import UsageError


def test_a_new_folder_an_empty_one_and_an_artifact_may_be_written(tmp_path):
    check_target(tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty")
    (tmp_path / "empty" / "export.json").write_text("{}", encoding="utf-8")
    check_target(tmp_path / "empty")


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(UsageError, match="is not an artifact"):
        check_target(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="is a file"):
        check_target(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be made"):
        check_target(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="is a folder"):
        check_file(tmp_path)
    check_file(None)
    check_file(tmp_path / "new.html")


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="may not be written"):
        check_target(tmp_path / "new")


def test_what_is_no_artifact_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        check_artifact(tmp_path / "none")
    with pytest.raises(UsageError, match=r"export\.json"):
        check_artifact(tmp_path)


@pytest.mark.parametrize("name", ["out", "out/", "out.v2", "deep/out"])
def test_an_unverified_artifact_lies_beside_the_name_that_was_asked_for(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = unverified(Path(name))
    assert place.parent == (tmp_path / name).parent
    assert place.name == f"{Path(name).name}-unverified"


def test_a_text_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "new" / "page.html"
    write_text(target, "grün")
    assert target.read_text(encoding="utf-8") == "grün"
    assert target.stat().st_mode & 0o400

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text(target, "other")
    assert target.read_text(encoding="utf-8") == "grün"
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]

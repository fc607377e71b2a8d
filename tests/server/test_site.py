"""Settings checks, migrations, static files, samples: what holds for the site as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core import checks
from django.core.management import call_command

from primer_site import assets
from tests.recipe import PUBLISHED, filled

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_samples_are_the_published_recipe_byte_for_byte_but_for_its_placeholders(name):
    assert (ROOT / "samples" / name).read_text() == filled(PUBLISHED[name])


@pytest.mark.django_db
def test_no_migration_is_missing():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_static_files_are_collected_once(settings, tmp_path):
    settings.STATIC_ROOT = tmp_path / "static"
    assert assets.collect() == "collected"
    assert assets.collect() == "unchanged"
    (tmp_path / "static" / assets.MARK).write_text("older sources")
    assert assets.collect() == "collected"


def complaints() -> list[str]:
    return [str(problem.id) for problem in checks.run_checks(tags=["primer"])]


def test_the_settings_of_a_prepared_home_are_without_complaint():
    assert complaints() == []


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("PRIMER_PREPARED", False, "primer.E001"),
        ("PRIMER_ENCRYPTION_KEYS", ["short"], "primer.E002"),
        ("PRIMER_INSTANCE_ID", "", "primer.E003"),
        ("PRIMER_INSTANCE_ID", "a b", "primer.E004"),
        ("PRIMER_DRAIN_S", -1.0, "primer.E006"),
        ("PRIMER_MAX_UPLOAD_BYTES", 10, "primer.E007"),
        ("ALLOWED_HOSTS", ["*"], "primer.W001"),
        ("DEBUG", True, "primer.W002"),
        ("PRIMER_ALLOW_LOCAL", True, "primer.W003"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_mend(settings, name, value, complaint):
    setattr(settings, name, value)
    (found,) = [problem for problem in checks.run_checks(tags=["primer"]) if problem.id == complaint]
    assert found.hint


def test_a_python_whose_sqlite_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr("primer_site.checks.sqlite3.sqlite_version_info", (3, 34, 1))
    assert complaints() == ["primer.E005"]

"""Each package that is installed with this one has a licence that is known and may be required."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", ROOT / "tools" / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_package_is_listed_with_a_licence_that_is_allowed(licences):
    listed = licences.listed_licences()
    assert list(listed) == list(licences.pinned_packages())
    refused = {
        package: licence
        for package, licence in listed.items()
        if not licences.is_allowed(package, licence)
    }
    assert not refused
    assert set(licences.OTHERS) <= set(listed)


def test_the_list_says_what_the_installed_packages_say(licences):
    pinned = licences.pinned_packages()
    for package, licence in licences.listed_licences().items():
        try:
            installed = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue  # an extra that is not installed here
        # Another Python has other versions of some.
        if installed == pinned[package]:
            assert licences.licence_of(package) == licence, package


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("BSD-3-Clause AND GPL-2.0-only", False),
        ("OSI Approved; MIT License", True),
        ("Other/Proprietary License", False),
        ("", False),
    ],
)
def test_which_licences_are_allowed(licences, licence, allowed):
    assert licences.is_allowed("a-package", licence) == allowed

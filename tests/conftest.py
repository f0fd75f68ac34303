"""What every test shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("CONFLUO_TEST_DATA", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def pcaps() -> Path:
    """Folder of the real captures with their truth; never part of this project."""
    folder = DATA / "pcaps"
    if not (folder / "truth").is_dir():
        pytest.skip(f"no captures at {folder}; set CONFLUO_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    return ROOT / "bin"

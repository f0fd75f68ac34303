"""Certificates that are thrown away, made by openssl(1)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str = "localhost") -> Path:
    """Key and self-signed certificate of this name, 127.0.0.1 and ::1 in one file; skips without openssl."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    path = folder / "both.pem"
    names = f"subjectAltName=DNS:{name},IP:127.0.0.1,IP:::1"
    done = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            names,
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return path

"""A certificate of nobody, for a server on loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def has_openssl() -> bool:
    """Tell whether certificates can be made here."""
    return shutil.which("openssl") is not None


def a_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that signs itself; return its file and that of its key."""
    openssl = shutil.which("openssl")
    assert openssl is not None
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    wanted = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=loopback", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(  # noqa: S603  # a fixed program with fixed arguments
        [openssl, *wanted.split(), *names, *files], check=True, capture_output=True
    )
    return certificate, key

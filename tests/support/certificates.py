"""Self-signed certificates, made with the openssl command."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Certificate and private key for `name`, valid for a day."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1", "-subj", f"/CN={name}"]
    subprocess.run([*command, *(options or ("-nodes",)), "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=30)
    key.chmod(0o600)
    return certificate, key

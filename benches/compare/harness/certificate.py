"""The certificate that every proxy shows where there is TLS: ECDSA on P-256, signed by itself."""

import os
import subprocess
from dataclasses import dataclass

from .processes import Failed

#: What clients ask for by SNI, without which sozu shows no certificate.
SERVER_NAME = "localhost"
WORDS = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=compare"
    f" -addext subjectAltName=DNS:{SERVER_NAME} -addext basicConstraints=critical,CA:FALSE"
).split()


@dataclass(frozen=True)
class Certificate:
    """Two files of PEM."""

    path: str
    key: str


def make(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "compare.pem")
    # HAProxy is told of the certificate alone, and looks for the key by this name.
    own = Certificate(path, f"{path}.key")
    argv = ["openssl", *WORDS, "-out", own.path, "-keyout", own.key]
    made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    if made.returncode:
        raise Failed(f"no certificate: {made.stderr.decode(errors='replace').strip()}")
    return own

"""A Python wheel that has the command and no Python code: `pip install`, and `weir` is in the path."""

import base64
import hashlib
import io
import pathlib
import time
import zipfile

from .source import DESCRIPTION, LICENSE, PACKAGE, SUMMARY, Release, read

# A static binary runs with every C library.
TAGS = {
    "x86_64": "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64": "py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}


def package(release: Release, architecture: str, out: pathlib.Path) -> pathlib.Path:
    distribution = PACKAGE.replace("-", "_")
    name, tags = f"{distribution}-{release.version}", TAGS[architecture]
    info = f"{name}.dist-info"
    files = {
        f"{name}.data/scripts/weir": release.binaries[architecture].read_bytes(),
        f"{info}/METADATA": metadata(release).encode(),
        f"{info}/WHEEL": wheel(tags).encode(),
        f"{info}/licenses/LICENSE-APACHE": read("LICENSE-APACHE"),
        f"{info}/licenses/LICENSE-MIT": read("LICENSE-MIT"),
    }
    record = "".join(record_line(path, data) for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as opened:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, time.gmtime(release.epoch)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if "/scripts/" in path else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            opened.writestr(entry, data)
    path = out / f"{name}-{tags}.whl"
    path.write_bytes(archive.getvalue())
    return path


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def metadata(release: Release) -> str:
    return f"""\
Metadata-Version: 2.4
Name: {PACKAGE}
Version: {release.version}
Summary: {SUMMARY}
License-Expression: {LICENSE}
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.7
Description-Content-Type: text/plain

{DESCRIPTION}

This package has the command `weir`: `weir init` writes a configuration, `weir` serves it.
"""


def wheel(tags: str) -> str:
    python, abi, platforms = tags.split("-")
    lines = [f"Tag: {python}-{abi}-{platform}" for platform in platforms.split(".")]
    return "\n".join(
        ["Wheel-Version: 1.0", "Generator: weir", "Root-Is-Purelib: false", *lines, ""]
    )

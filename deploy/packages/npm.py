"""An npm package that has the command: a package for each architecture, without a script between
npm's link and the binary, so that signals reach the gateway."""

import json
import pathlib

from .archive import tar
from .source import DESCRIPTION, LICENSE, PACKAGE, Release, compressed, read

ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


def package(release: Release, architecture: str, out: pathlib.Path) -> pathlib.Path:
    cpu = ARCHITECTURES[architecture]
    name = f"{PACKAGE}-linux-{cpu}"
    manifest = {
        "name": name,
        "version": release.version,
        "description": DESCRIPTION,
        "license": LICENSE,
        "os": ["linux"],
        "cpu": [cpu],
        "bin": {"weir": "bin/weir"},
        "files": ["bin/weir"],
    }
    readme = f"# {PACKAGE}\n\n{DESCRIPTION}\n\n`weir init` writes a configuration, `weir` serves it.\n"
    files = {
        "package/package.json": ((json.dumps(manifest, indent=2) + "\n").encode(), 0o644),
        "package/README.md": (readme.encode(), 0o644),
        "package/LICENSE-APACHE": (read("LICENSE-APACHE"), 0o644),
        "package/LICENSE-MIT": (read("LICENSE-MIT"), 0o644),
        "package/bin/weir": (release.binaries[architecture].read_bytes(), 0o755),
    }
    path = out / f"{name}-{release.version}.tgz"
    path.write_bytes(compressed(tar(files, release.epoch)))
    return path

"""What a release is made of: the binaries, and the files that go with them."""

import dataclasses
import functools
import gzip
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

SUMMARY = "Rate-limiting reverse proxy"
DESCRIPTION = (
    "Weir stands in front of a web app and decides for every HTTP request whether its client has "
    "sent too many. Limits are exact, count per address, per account or per any other attribute of "
    "a request, and are kept in memory or, for several gateways, in Redis."
)
LICENSE = "MIT OR Apache-2.0"

# Names that are free where packages of others are: `weir` is not, on PyPI.
PACKAGE = "weir-gateway"


@dataclasses.dataclass(frozen=True)
class Release:
    """What all artefacts share."""

    version: str
    commit: str
    # The time of the commit. Each file of each artefact has it, so that the same source makes the
    # same bytes.
    epoch: int
    # The binaries by their architectures, as Rust names these.
    binaries: dict[str, pathlib.Path]
    # One of them, or another one, that runs on this machine.
    runnable: pathlib.Path

    def run(self, *arguments: str) -> bytes:
        return subprocess.run([self.runnable, *arguments], check=True, capture_output=True).stdout

    @functools.cached_property
    def man_pages(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            self.run("man", folder)
            pages = sorted(pathlib.Path(folder).iterdir())
            return {page.name: page.read_bytes() for page in pages}

    @functools.cached_property
    def completions(self) -> dict[str, bytes]:
        return {shell: self.run("completions", shell) for shell in ("bash", "zsh", "fish")}

    @functools.cached_property
    def schemas(self) -> dict[str, bytes]:
        names = ("gateway", "defaults", "overrides")
        return {f"{name}.json": self.run("schema", name) for name in names}


def version() -> str:
    manifest = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^\[workspace\.package\].*?^version = "(.+?)"', manifest, re.M | re.S)[1]


def read(path: str) -> bytes:
    return (ROOT / path).read_bytes()


def documentation() -> dict[str, bytes]:
    """README.md, and what its links lead to, by their paths in the repository."""
    names = ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")
    paths = [f"{name}.md" for name in names] + ["LICENSE-APACHE", "LICENSE-MIT", "gateway.yaml"]
    pages = sorted(path for path in (ROOT / "docs").rglob("*") if path.is_file())
    paths += [str(path.relative_to(ROOT)) for path in pages]
    return {path: read(path) for path in paths}


def compressed(data: bytes) -> bytes:
    """gzip without a time, which would differ from build to build."""
    return gzip.compress(data, 9, mtime=0)

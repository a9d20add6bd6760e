"""A Debian package. The binary is static, so it runs on every release and depends on nothing."""

import os
import pathlib
import subprocess
import tempfile
import textwrap

from .source import DESCRIPTION, SUMMARY, Release, compressed, documentation, read

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

CONFIGURATION = {
    "etc/weir/gateway.yaml": "deploy/debian/gateway.yaml",
    "etc/weir/limits/defaults.yaml": "deploy/debian/defaults.yaml",
}


def package(release: Release, architecture: str, out: pathlib.Path) -> pathlib.Path:
    debian = ARCHITECTURES[architecture]
    version = f"{release.version}-1"
    path = out / f"weir_{version}_{debian}.deb"
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "weir"
        files = contents(release, architecture)
        for name, (data, mode) in files.items():
            write(tree / name, data, mode)
        size = sum(len(data) for data, _ in files.values()) // 1024 + 1
        write(tree / "DEBIAN/control", control(version, debian, size), 0o644)
        conffiles = "".join(f"/{name}\n" for name in CONFIGURATION)
        write(tree / "DEBIAN/conffiles", conffiles.encode(), 0o644)
        for script in ("postinst", "prerm", "postrm"):
            write(tree / "DEBIAN" / script, read(f"deploy/debian/{script}"), 0o755)
        for path_in_tree in [tree, *tree.rglob("*")]:
            if path_in_tree.is_dir():
                path_in_tree.chmod(0o755)
        # gzip is what every dpkg reads, and level 9 of xz would take a minute.
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z9", "--build", tree, path]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return path


def contents(release: Release, architecture: str) -> dict[str, tuple[bytes, int]]:
    """The files by their paths, each with its mode."""
    doc, man = "usr/share/doc/weir", "usr/share/man/man1"
    texts = {
        "usr/lib/systemd/system/weir.service": read("deploy/weir.service"),
        "usr/lib/systemd/system/weir.socket": read("deploy/weir.socket"),
        **{f"{doc}/{path}": text for path, text in documentation().items()},
        f"{doc}/changelog.gz": compressed(read("CHANGELOG.md")),
        f"{doc}/copyright": read("deploy/debian/copyright"),
        **{f"{man}/{page}.gz": compressed(text) for page, text in release.man_pages.items()},
        "usr/share/bash-completion/completions/weir": release.completions["bash"],
        "usr/share/zsh/vendor-completions/_weir": release.completions["zsh"],
        "usr/share/fish/vendor_completions.d/weir.fish": release.completions["fish"],
        **{f"usr/share/weir/schema/{file}": text for file, text in release.schemas.items()},
        **{path: read(source) for path, source in CONFIGURATION.items()},
    }
    files = {path: (text, 0o644) for path, text in texts.items()}
    files["usr/bin/weir"] = (release.binaries[architecture].read_bytes(), 0o755)
    return files


def control(version: str, architecture: str, kibibytes: int) -> bytes:
    description = textwrap.fill(DESCRIPTION, 76, initial_indent=" ", subsequent_indent=" ")
    return f"""\
Package: weir
Version: {version}
Architecture: {architecture}
Maintainer: The Weir authors <weir@localhost>
Installed-Size: {kibibytes}
Section: net
Priority: optional
Description: {SUMMARY}
{description}
""".encode()


def write(path: pathlib.Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)

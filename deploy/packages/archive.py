"""Archives with nothing in them that differs from build to build."""

import io
import pathlib
import shutil
import tarfile
from collections.abc import Mapping

from .source import Release, compressed, documentation, read


def tar(files: Mapping[str, tuple[bytes, int]], epoch: int) -> bytes:
    """A tar archive of files by their paths, each with its mode. Files belong to root."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), mode, epoch
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def binary_archive(release: Release, architecture: str, out: pathlib.Path) -> pathlib.Path:
    """The binary, and all that a package would install beside it."""
    name = f"weir-{release.version}-{architecture}-linux-musl"
    files = {"bin/weir": (release.binaries[architecture].read_bytes(), 0o755)}
    texts = {
        **{f"share/man/man1/{page}": text for page, text in release.man_pages.items()},
        "share/completions/weir.bash": release.completions["bash"],
        "share/completions/_weir": release.completions["zsh"],
        "share/completions/weir.fish": release.completions["fish"],
        **{f"share/schema/{file}": text for file, text in release.schemas.items()},
        **documentation(),
        "systemd/weir.service": read("deploy/weir.service"),
        "systemd/weir.socket": read("deploy/weir.socket"),
    }
    files.update({path: (text, 0o644) for path, text in texts.items()})
    files = {f"{name}/{path}": file for path, file in files.items()}
    path = out / f"{name}.tar.gz"
    path.write_bytes(compressed(tar(files, release.epoch)))
    return path


def chart(release: Release, out: pathlib.Path) -> pathlib.Path:
    """The Helm chart, as `helm package` would write it."""
    files = {}
    folder = pathlib.Path(__file__).resolve().parents[1] / "helm"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[f"weir/{path.relative_to(folder)}"] = (path.read_bytes(), 0o644)
    path = out / f"weir-chart-{release.version}.tgz"
    path.write_bytes(compressed(tar(files, release.epoch)))
    return path


def image(release: Release, out: pathlib.Path) -> list[pathlib.Path]:
    """What an image is built from: the binaries by the names that Docker has for architectures."""
    folder = out / "image"
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    made = [folder / "Dockerfile"]
    for architecture, binary in release.binaries.items():
        made.append(folder / names[architecture] / "weir")
        made[-1].parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(binary, made[-1])
    made[0].write_bytes(read("deploy/image.Dockerfile"))
    return made

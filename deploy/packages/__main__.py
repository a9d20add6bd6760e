"""Makes all artefacts of a release in a folder, from finished binaries.

    python3 -m packages --out DIR --commit ID --epoch SECONDS --features LIST \\
        --profile NAME --binary ARCHITECTURE=PATH ... [--runnable PATH] [--version VERSION] \\
        [--tool NAME=VERSION ...] [--library NAME=VERSION ...]
"""

import argparse
import hashlib
import json
import pathlib
import subprocess

from . import archive, debian, npm, sbom, source, wheel


def main() -> None:
    parser = argparse.ArgumentParser(prog="packages")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--binary", action="append", required=True, metavar="ARCHITECTURE=PATH")
    parser.add_argument("--runnable", type=pathlib.Path, help="a binary that runs here")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--features", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--version", default=source.version())
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=VERSION")
    parser.add_argument("--library", action="append", default=[], metavar="NAME=VERSION",
                        help="what is linked that is no crate")
    arguments = parser.parse_args()
    binaries = dict(binary.split("=", 1) for binary in arguments.binary)
    binaries = {name: pathlib.Path(path).resolve() for name, path in binaries.items()}
    release = source.Release(
        version=arguments.version,
        commit=arguments.commit,
        epoch=arguments.epoch,
        binaries=binaries,
        runnable=(arguments.runnable or next(iter(binaries.values()))).resolve(),
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    made = [
        make(release, architecture, arguments.out)
        for architecture in release.binaries
        for make in (archive.binary_archive, debian.package, wheel.package, npm.package)
    ]
    made.append(archive.chart(release, arguments.out))
    made.append(sbom.write(release, arguments.features, arguments.library, arguments.out))
    made += archive.image(release, arguments.out)
    made.append(manifest(release, arguments, made))
    names = {path: path.relative_to(arguments.out) for path in sorted(made)}
    sums = "".join(f"{digest(path)}  {name}\n" for path, name in names.items())
    (arguments.out / "SHA256SUMS").write_text(sums)


def manifest(
    release: source.Release, arguments: argparse.Namespace, made: list[pathlib.Path]
) -> pathlib.Path:
    """What the artefacts are, and what they were made with."""
    rustc = subprocess.run(["rustc", "-V"], check=True, capture_output=True, text=True).stdout
    binaries = {name: hashlib.sha256(path.read_bytes()).hexdigest()
                for name, path in release.binaries.items()}
    contents = {
        "name": "weir",
        "version": release.version,
        "commit": release.commit,
        "source_date_epoch": release.epoch,
        "rustc": rustc.strip(),
        "tools": dict(tool.split("=", 1) for tool in arguments.tool),
        "profile": arguments.profile,
        "features": arguments.features.split(","),
        "binaries": binaries,
        "files": [
            {
                "name": str(path.relative_to(arguments.out)),
                "bytes": path.stat().st_size,
                "sha256": digest(path),
            }
            for path in sorted(made)
        ],
    }
    path = arguments.out / "manifest.json"
    path.write_text(json.dumps(contents, indent=2) + "\n")
    return path


def digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()

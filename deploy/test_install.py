#!/usr/bin/env python3
"""Packages the crates as for crates.io, and makes sure that users can build them: a published crate
has in its package what it is compiled from and its licence, and nothing else.

    deploy/test_install.py            compiles the packaged crates against what Cargo has downloaded
    deploy/test_install.py --install  puts them and all that they depend on into a registry in a
                                      temporary folder, and has `cargo install weir` build the
                                      command from there, from nothing and without a network
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CARGO_HOME = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
SOURCES = {"src", "examples", "proptest-regressions", "docs"}
FILES = {"Cargo.toml", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json", "README.md",
         "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"}


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **{"cwd": ROOT, **options})


def output(*command):
    return run(*command, stdout=subprocess.PIPE).stdout


def published():
    """The packages of the workspace that are published, as Cargo describes them."""
    metadata = json.loads(output("cargo", "metadata", "--locked", "--no-deps", "--format-version=1"))
    return [package for package in metadata["packages"] if package["publish"] != []]


def package(packages):
    names = [word for package in packages for word in ("--package", package["name"])]
    run("cargo", "package", "--locked", "--quiet", "--no-verify", "--allow-dirty",
        "--target-dir", TARGET, *names)
    return {package["name"]: TARGET / "package" / f"{package['name']}-{package['version']}.crate"
            for package in packages}


def inspect(name, crate):
    with tarfile.open(crate) as archive:
        paths = [pathlib.PurePath(member.name).parts[1:] for member in archive]
    strange = [path for path in paths if path[0] not in (SOURCES if len(path) > 1 else FILES)]
    assert not strange, f"{name} has files that nobody needs: {strange[:5]}"
    assert name != "weir" or ("LICENSE-MIT",) in paths, paths


def entry(package, crate):
    """A line of the index about a package of ours."""
    def dependency(of):
        return {
            "name": of["rename"] or of["name"], "package": of["name"] if of["rename"] else None,
            "req": of["req"], "features": of["features"], "optional": of["optional"],
            "default_features": of["uses_default_features"], "target": of["target"],
            "kind": of["kind"] or "normal",
        }
    # Those for tests have no version where they are not published.
    of_users = [of for of in package["dependencies"] if of["kind"] != "dev"]
    return {
        "name": package["name"], "vers": package["version"], "yanked": False, "v": 2,
        "deps": [dependency(of) for of in of_users], "features": {}, "features2": package["features"],
        "cksum": hashlib.sha256(crate.read_bytes()).hexdigest(),
    }


def folder_of(name):
    """Where the index has a name."""
    if len(name) < 4:
        return pathlib.Path(str(len(name)), *([name[0]] if len(name) == 3 else []))
    return pathlib.Path(name[:2], name[2:4])


def downloaded(name, version):
    """A crate that Cargo has downloaded, and its line of the index."""
    crate, = (CARGO_HOME / "registry/cache").glob(f"*/{name}-{version}.crate")
    host = crate.parent.name
    index = CARGO_HOME / "registry/index" / host / ".cache" / folder_of(name) / name
    lines = re.findall(rb'\0(\{"name".*?\})(?=\0|$)', index.read_bytes(), re.DOTALL)
    entries = map(json.loads, lines)
    line, = [entry for entry in entries if entry["vers"].split("+")[0] == version.split("+")[0]]
    return crate, line


def write_registry(folder, packages, crates):
    index = folder / "index"
    lines = {}
    for package in packages:
        crate = crates[package["name"]]
        (folder / crate.name).symlink_to(crate)
        lines.setdefault(package["name"], []).append(entry(package, crate))
    run("cargo", "fetch", "--locked", "--quiet")
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    for locked in lock["package"]:
        if "source" not in locked:
            continue
        crate, line = downloaded(locked["name"], locked["version"])
        (folder / crate.name).symlink_to(crate)
        lines.setdefault(locked["name"], []).append(line)
    for name, of_name in lines.items():
        path = index / folder_of(name)
        path.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("".join(json.dumps(line) + "\n" for line in of_name))


def compiles(crates):
    """Compiles the packaged crates, and takes the others as the workspace does."""
    folder = TARGET / "package/unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    paths = {}
    for name, crate in crates.items():
        with tarfile.open(crate) as archive:
            archive.extractall(folder, filter="data")
        paths[name] = folder / crate.stem
    patches = [f"patch.crates-io.{name}.path={json.dumps(str(path))}"
               for name, path in paths.items() if name != "weir"]
    config = [word for patch in patches for word in ("--config", patch)]
    run("cargo", "check", "--offline", "--quiet", "--bin", "weir", "--target-dir", TARGET, *config,
        cwd=paths["weir"])


def install(folder, packages, crates):
    """Installs the command as a user who has downloaded nothing yet."""
    registry = folder / "registry"
    registry.mkdir()
    write_registry(registry, packages, crates)
    start = time.monotonic()
    own = {"CARGO_HOME": str(folder / "home"), "CARGO_TARGET_DIR": str(folder / "target")}
    run("cargo", "install", "weir", "--locked", "--offline", "--quiet", "--root", folder / "root",
        "--config", 'source.crates-io.replace-with="packaged"',
        "--config", f"source.packaged.local-registry={json.dumps(str(registry))}",
        env={**os.environ, **own})
    print(f"cargo install weir: {time.monotonic() - start:.0f} s")
    weir, config = folder / "root/bin/weir", folder / "gateway.yaml"
    run(weir, "--version")
    run(weir, "init", "--config", config, "--upstream", "http://127.0.0.1:9")
    run(weir, "check", "--strict", "--config", config)


def main():
    packages = published()
    crates = package(packages)
    for name, crate in crates.items():
        inspect(name, crate)
    if "--install" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            install(pathlib.Path(folder), packages, crates)
    else:
        compiles(crates)
    print(f"{len(crates)} crates can be built from their packages")


if __name__ == "__main__":
    main()

"""A bill of materials in CycloneDX's form: each crate in the binaries, with its version, its licence,
the checksum by which Cargo verified it, and what it depends on; and the libraries that come with the
compilers."""

import datetime
import json
import pathlib
import subprocess
import tomllib
import uuid

from .source import ROOT, Release


def write(
    release: Release, features: str, libraries: list[str], out: pathlib.Path
) -> pathlib.Path:
    platforms = [f"{architecture}-unknown-linux-musl" for architecture in release.binaries]
    graph = linked(features, platforms)
    packages = {reference(p["name"], p["version"]): p for p in metadata(features, platforms)}
    checksums = locked_checksums()
    [root] = [crate for crate in graph if crate.startswith("pkg:cargo/weir@")]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(release.epoch, datetime.UTC).isoformat(),
            "component": {
                **component(packages[root], checksums),
                "type": "application",
                "version": release.version,
                "properties": [
                    {"name": "weir:commit", "value": release.commit},
                    {"name": "weir:features", "value": features},
                ],
            },
        },
        "components": [
            *(component(packages[crate], checksums) for crate in sorted(graph) if crate != root),
            *(library(*pair.split("=", 1)) for pair in libraries),
        ],
        "dependencies": [
            {"ref": crate, "dependsOn": sorted(graph[crate])} for crate in sorted(graph)
        ],
    }
    # The same contents have the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    document["serialNumber"] = f"urn:uuid:{number}"
    path = out / f"weir-{release.version}.cdx.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def cargo(*arguments: str) -> str:
    command = ["cargo", *arguments, "--locked"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata(features: str, platforms: list[str]) -> list[dict]:
    filters = [f"--filter-platform={platform}" for platform in platforms]
    printed = cargo("metadata", "--format-version=1", f"--features={features}", *filters)
    return json.loads(printed)["packages"]


def linked(features: str, platforms: list[str]) -> dict[str, set[str]]:
    """The crates that the command is made of, and those that each depends on: neither what tests
    need nor what builds alone need. `cargo metadata` has features of the whole workspace's tests in
    its graph, and so crates that are in no binary."""
    targets = [f"--target={platform}" for platform in platforms]
    tree = cargo(
        "tree", "--package=weir", f"--features={features}", "--edges=normal,no-proc-macro",
        "--prefix=depth", "--format= {p}", *targets,
    )
    graph: dict[str, set[str]] = {}
    above: list[str] = []
    # `2 name v1.0.0`, below the last line with a 1.
    for depth, name, version, *_ in (line.split() for line in tree.splitlines() if line):
        crate = reference(name, version.removeprefix("v"))
        graph.setdefault(crate, set())
        del above[int(depth):]
        if above:
            graph[above[-1]].add(crate)
        above.append(crate)
    return graph


def locked_checksums() -> dict[tuple[str, str], str]:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    packages = [package for package in lock["package"] if "checksum" in package]
    return {(package["name"], package["version"]): package["checksum"] for package in packages}


def reference(name: str, version: str) -> str:
    return f"pkg:cargo/{name}@{version}"


def library(name: str, version: str) -> dict:
    purl = f"pkg:generic/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def component(package: dict, checksums: dict[tuple[str, str], str]) -> dict:
    purl = reference(package["name"], package["version"])
    found = {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
    }
    if package["description"]:
        found["description"] = " ".join(package["description"].split())
    # Old manifests write a slash for `OR`.
    choices = [choice.strip() for choice in package["license"].split("/")]
    found["licenses"] = [{"expression": " OR ".join(choices)}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found

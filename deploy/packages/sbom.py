"""A bill of materials in CycloneDX's form: each crate in the binary, with its version, its licence,
the checksum by which Cargo verified it, and what it depends on."""

import datetime
import json
import pathlib
import subprocess
import tomllib
import uuid

from .source import LICENSE, ROOT, Release


def write(release: Release, features: str, out: pathlib.Path) -> pathlib.Path:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--features", features]
    command += ["--filter-platform", "x86_64-unknown-linux-musl"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    metadata = json.loads(printed)
    graph = linked(metadata)
    packages = {package["id"]: package for package in metadata["packages"]}
    checksums = locked_checksums()
    shipped = [packages[id] for id in sorted(graph, key=lambda id: reference(packages[id]))]
    root, *_ = [package for package in shipped if package["name"] == "weir"]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(release.epoch, datetime.UTC).isoformat(),
            "component": {
                **component(root, checksums),
                "type": "application",
                "version": release.version,
                "properties": [
                    {"name": "weir:commit", "value": release.commit},
                    {"name": "weir:features", "value": features},
                ],
            },
        },
        "components": [component(package, checksums) for package in shipped if package is not root],
        "dependencies": [
            {
                "ref": reference(package),
                "dependsOn": sorted(reference(packages[id]) for id in graph[package["id"]]),
            }
            for package in shipped
        ],
    }
    # The same contents have the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    document["serialNumber"] = f"urn:uuid:{number}"
    path = out / f"weir-{release.version}.cdx.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def linked(metadata: dict) -> dict[str, list[str]]:
    """The packages that the command is made of, and those that each depends on: neither what tests
    need nor what builds alone need."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    graph: dict[str, list[str]] = {}
    waiting = [metadata["resolve"]["root"]]
    while waiting:
        id = waiting.pop()
        if id in graph:
            continue
        normal = [
            dependency["pkg"]
            for dependency in nodes[id]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
        graph[id] = [dependency for dependency in normal if dependency != id]
        waiting += graph[id]
    return graph


def locked_checksums() -> dict[tuple[str, str], str]:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    packages = [package for package in lock["package"] if "checksum" in package]
    return {(package["name"], package["version"]): package["checksum"] for package in packages}


def reference(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, checksums: dict[tuple[str, str], str]) -> dict:
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package["description"]:
        found["description"] = " ".join(package["description"].split())
    # Old manifests write a slash for `OR`.
    license = (package["license"] or LICENSE).replace("/", " OR ")
    found["licenses"] = [{"expression": license}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found

#!/usr/bin/env python3
"""Installs the Helm chart by Helm itself into a stand-in for the API of Kubernetes, and validates
what arrives there by the schemas of Kubernetes.

    deploy/test_chart.py        makes two virtual environments in target/tools, with Helm's library
                                (helm-sdkpy, which needs Python 3.12) and kubernetes-validate

The stand-in listens on loopback. No schema is at hand for the ServiceMonitor, which only its keys
are checked of.
"""

import asyncio
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tools"
HELM, VALIDATE = "helm-sdkpy==0.1.32", "kubernetes-validate==1.37.0"
KUBERNETES = "1.34"

RESOURCES = {
    "v1": {"configmaps": "ConfigMap", "secrets": "Secret", "services": "Service"},
    "apps/v1": {"deployments": "Deployment"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "monitoring.coreos.com/v1": {"servicemonitors": "ServiceMonitor"},
}

EVERYTHING = {
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "existingSecret": "mine",
    "restartOnChange": True,
    "netAdmin": True,
    "env": [{"name": "A", "value": "b"}],
    "imagePullSecrets": [{"name": "pull"}],
    "priorityClassName": "high",
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "service": {"type": "LoadBalancer", "udp": True, "annotations": {"a": "b"}},
}


NOT_FOUND = {
    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
}


class Api(http.server.BaseHTTPRequestHandler):
    """As much of the API as Helm asks for. It keeps what is created."""

    created: list[dict] = []

    def do_GET(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        known = discovery().get(path)
        code, body = (200, known) if known else (404, NOT_FOUND)
        self.reply(code, json.dumps(body).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        # Helm's own record of the release is in protobuf.
        if self.headers["content-type"] == "application/json":
            self.created.append(json.loads(body))
        self.reply(201, body, self.headers["content-type"])

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.reply(200, body, self.headers["content-type"])

    def reply(self, code: int, data: bytes, form: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("content-type", form)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def discovery() -> dict[str, dict]:
    groups = [version.split("/") for version in RESOURCES if "/" in version]
    listed = []
    for group, version in groups:
        one = {"groupVersion": f"{group}/{version}", "version": version}
        listed.append({"name": group, "versions": [one], "preferredVersion": one})
    pages = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed},
        # What is listed is empty.
        "/api/v1/namespaces/default/secrets": {"kind": "SecretList", "apiVersion": "v1", "items": []},
    }
    for version, kinds in RESOURCES.items():
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        verbs = ["create", "delete", "get", "list", "patch", "update"]
        resources = [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}
            for name, kind in kinds.items()
        ]
        pages[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return pages


def install(values: dict) -> list[dict]:
    """What Helm creates of the chart with these values."""
    import helm_sdkpy

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Api.created = []
    config = f"""\
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{server.server_port}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
users: [{{name: test, user: {{}}}}]
"""
    helm = helm_sdkpy.Configuration(kubeconfig=config)
    chart = str(ROOT / "deploy/helm")
    asyncio.run(helm_sdkpy.Install(helm).run("edge", chart, values, wait=False, timeout=30))
    server.shutdown()
    return Api.created


def refuses(values: dict) -> bool:
    try:
        install(values)
    except Exception as error:
        return "schema" in str(error)
    return False


def installed() -> dict:
    """What Helm makes of the chart by default and with everything; run by a Python with Helm."""
    assert refuses({"replica": 3}), "an unknown value must not pass"
    return {"default": install({}), "everything": install(EVERYTHING)}


def environment(name: str, package: str, python: str) -> pathlib.Path:
    folder = TOOLS / name
    if not (folder / "done").exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
        command = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check", package]
        subprocess.run(command, check=True)
        (folder / "done").touch()
    return folder / "bin/python"


def newer_python() -> str | None:
    """A Python that Helm's library runs with: in the path, or of pyenv."""
    if sys.version_info >= (3, 12):
        return sys.executable
    named = [shutil.which(f"python3.{minor}") for minor in (14, 13, 12)]
    pyenv = sorted(pathlib.Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3"))
    found = [path for path in [*named, *map(str, pyenv)] if path]
    works = [path for path in found if subprocess.run(
        [path, "-c", "import ssl"], capture_output=True).returncode == 0]
    return works[0] if works else None


def validate(name: str, objects: list[dict]) -> None:
    """Holds the objects to the schemas; run by a Python with kubernetes-validate."""
    import kubernetes_validate

    for thing in objects:
        if thing["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    kinds = sorted(thing["kind"] for thing in objects)
    print(f"{name}: {', '.join(kinds)}")


def check(made: dict[str, list[dict]]) -> None:
    for name, objects in made.items():
        validate(name, objects)
    by_default = {thing["kind"]: thing for thing in made["default"]}
    everything = {thing["kind"]: thing for thing in made["everything"]}
    assert "HorizontalPodAutoscaler" not in by_default and "Secret" in by_default
    assert "Secret" not in everything, "a Secret of the user's takes the place of the chart's"
    assert by_default["Deployment"]["spec"]["replicas"] == 2
    assert "replicas" not in everything["Deployment"]["spec"], "the autoscaler decides"
    admin = by_default["NetworkPolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in admin] == ["http", "admin"] and "from" in admin[1]
    assert [rule["ports"][-1] for rule in everything["NetworkPolicy"]["spec"]["ingress"]][0] == {
        "protocol": "UDP", "port": 8080}
    pod = everything["Deployment"]["spec"]["template"]
    annotations = pod["metadata"]["annotations"]
    assert annotations["a"] == "b" and len(annotations["checksum/gateway"]) == 64, annotations
    by_itself = by_default["Deployment"]["spec"]["template"]["metadata"]
    assert "annotations" not in by_itself, "pods load changes without a restart by default"
    assert pod["metadata"]["labels"].items() >= {"c": "d", "app.kubernetes.io/name": "weir"}.items()
    assert len(pod["spec"]["topologySpreadConstraints"]) == 2
    monitor = everything["ServiceMonitor"]
    services = [thing for thing in made["everything"] if thing["kind"] == "Service"]
    clients = [thing["spec"]["ports"] for name in made for thing in made[name]
               if thing["kind"] == "Service" and thing["metadata"]["name"] == "edge-weir"]
    protocols = [[port.get("protocol", "TCP") for port in ports] for ports in clients]
    assert protocols == [["TCP"], ["TCP", "UDP"]], protocols
    selected = [service for service in services if service["metadata"]["labels"].items()
                >= monitor["spec"]["selector"]["matchLabels"].items()]
    assert [service["metadata"]["name"] for service in selected] == ["edge-weir-admin"]
    assert monitor["spec"]["endpoints"][0]["port"] == selected[0]["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def main() -> None:
    if sys.argv[1:] == ["--install"]:
        json.dump(installed(), sys.stdout)
        return
    if sys.argv[1:] == ["--check"]:
        check(json.load(sys.stdin))
        return
    python = newer_python()
    if python is None:
        print("NOT CHECKED: the chart, as there is no Python 3.12 for Helm's library")
        return
    helm = environment("helm-sdkpy", HELM, python)
    made = subprocess.run([helm, __file__, "--install"], check=True, capture_output=True).stdout
    validator = environment("kubernetes-validate", VALIDATE, sys.executable)
    subprocess.run([validator, __file__, "--check"], input=made, check=True)


if __name__ == "__main__":
    main()

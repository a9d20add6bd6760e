#!/usr/bin/env bash
# Installs, upgrades and removes what deploy/release.sh made, and runs it.
#
#   deploy/test_packages.sh FOLDER
#
# The Debian package is installed on this machine, as root, and removed again; where `weir` is
# installed already, nothing is done. Network access is not needed. What cannot be tried here is
# named at the end.
set -euo pipefail
release=$(cd "$1" && pwd)
machine=$(uname -m)
work=$(mktemp -d)
skipped=()
is_static=yes

say() { printf '\n== %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { skipped+=("$*"); }

# Runs a weir with a configuration by `init`, asks for its health, and ends it.
serves() {
  local weir=$1 folder
  folder=$(mktemp -d -p "$work")
  "$weir" init --config "$folder/gateway.yaml" --upstream http://127.0.0.1:9 \
    --listen 127.0.0.1:0 >"$folder/init.log"
  sed -i "s/127.0.0.1:9901/127.0.0.1:$((20000 + RANDOM % 10000))/" "$folder/gateway.yaml"
  "$weir" check --strict --config "$folder/gateway.yaml"
  "$weir" --config "$folder/gateway.yaml" >"$folder/log" 2>&1 &
  local pid=$! tries=0
  until "$weir" --config "$folder/gateway.yaml" health --ready; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat "$folder/log"; fail "$weir does not serve"; }
    sleep 0.1
  done 2>/dev/null
  kill -TERM $pid
  wait $pid || fail "$weir ends with $?"
}

checksums() {
  (cd "$release" && sha256sum --check --quiet SHA256SUMS)
  python3 - "$release" <<'END'
import hashlib, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
assert listed | {"SHA256SUMS"} == made, listed ^ made
assert {file["name"] for file in manifest["files"]} | {"manifest.json"} == listed
for file in manifest["files"]:
    data = (folder / file["name"]).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"]), file
bom = json.loads((folder / f"weir-{manifest['version']}.cdx.json").read_text())
known = {component["bom-ref"] for component in bom["components"]}
known.add(bom["metadata"]["component"]["bom-ref"])
for dependency in bom["dependencies"]:
    assert {dependency["ref"], *dependency["dependsOn"]} <= known, dependency
print(f"{len(manifest['files'])} files, {len(known)} crates in the bill of materials")
END
}

# The README in a folder leads nowhere that is not packaged beside it.
links() {
  local link
  [ -s "$1/README.md" ] || fail "$1 has no README.md"
  grep -oE '\]\([^)#]+' "$1/README.md" | sed 's/^](//' | grep -v '^https\?:' | sort -u |
    while read -r link; do
      [ -e "$1/$link" ] || fail "README.md links to $link, which is not in $1"
    done
}

archive() {
  local found=("$release"/weir-*-"$machine"-linux-musl.tar.gz)
  mkdir "$work/archive"
  tar -xzf "${found[0]}" -C "$work/archive" --strip-components=1
  serves "$work/archive/bin/weir"
  links "$work/archive"
  # ldd succeeds for a binary that is static and at any address.
  if ! (ldd "$work/archive/bin/weir" 2>&1 || true) | grep -qE 'statically linked|not a dynamic'; then
    is_static=no
    skip "a static binary: this one is dynamic"
  fi
}

wheel() {
  local found=("$release"/*_"$machine".whl)
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q --no-index --disable-pip-version-check "${found[0]}"
  "$work/venv/bin/weir" --version
  serves "$work/venv/bin/weir"
  "$work/venv/bin/pip" uninstall -q -y weir-gateway
  [ ! -e "$work/venv/bin/weir" ] || fail "the wheel leaves its command behind"
}

npm_package() {
  command -v npm >/dev/null || { skip "the npm package: npm is not installed"; return; }
  local cpu=x64
  [ "$machine" = x86_64 ] || cpu=arm64
  local found=("$release"/weir-gateway-linux-"$cpu"-*.tgz)
  npm install --silent --offline --global --prefix "$work/npm" "${found[0]}"
  "$work/npm/bin/weir" --version
  serves "$work/npm/bin/weir"
  npm uninstall --silent --global --prefix "$work/npm" "weir-gateway-linux-$cpu"
  [ ! -e "$work/npm/bin/weir" ] || fail "the npm package leaves its command behind"
}

# dpkg with a systemctl that writes down what it is asked, where systemd seems to run.
with_systemd() {
  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "$*" >>%s/systemctl.log\n[ "$1" != kill ] || exit ${KILL:-0}\n' \
    "$work" >"$work/bin/systemctl"
  chmod +x "$work/bin/systemctl"
  : >"$work/systemctl.log"
  PATH=$work/bin:$PATH unshare --mount sh -c '
    mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/system &&
    exec "$@"' sh "$@"
}

debian() {
  [ "$(id -u)" = 0 ] || { skip "the Debian package: only root installs packages"; return; }
  ! command -v weir >/dev/null || { skip "the Debian package: a weir is installed"; return; }
  unshare --mount true 2>/dev/null ||
    { skip "the Debian package: no mounts of one's own for a stand-in of systemd"; return; }
  local architecture deb next version
  architecture=$(dpkg --print-architecture)
  deb=$(echo "$release"/weir_*_"$architecture".deb)
  trap 'dpkg --purge weir >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

  say "documentation"
  mkdir "$work/doc"
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/doc" ./usr/share/doc/weir
  links "$work/doc/usr/share/doc/weir"

  say "install"
  dpkg --install "$deb"
  weir --version
  weir check --strict --config /etc/weir/gateway.yaml
  serves /usr/bin/weir
  man --warnings -l /usr/share/man/man1/weir.1.gz >/dev/null 2>"$work/man.log" || true
  [ ! -s "$work/man.log" ] || { cat "$work/man.log"; skip "the man page without warnings"; }
  [ -e /usr/share/bash-completion/completions/weir ] || fail "no completions"

  say "the units"
  if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify weir.service weir.socket
    systemd-analyze security --offline=true --threshold=20 weir.service | tail -n 1
  else
    skip "the units: systemd-analyze is not installed"
  fi

  say "upgrade: the administrator's files stay, and a running gateway gets a successor"
  # The unit has the variable, and whoever installs has not.
  echo 'hash_key: {env: WEIR_HASH_KEY} # edited' >>/etc/weir/gateway.yaml
  ! env -u WEIR_HASH_KEY weir check --config /etc/weir/gateway.yaml >/dev/null 2>&1 ||
    fail "the configuration is valid without the unit's variables"
  next=$work/next
  mkdir "$next"
  dpkg-deb --raw-extract "$deb" "$next/tree"
  version=$(dpkg-deb --field "$deb" Version)
  sed -i "s/^Version: .*/Version: $version.1/" "$next/tree/DEBIAN/control"
  echo '# another default' >>"$next/tree/etc/weir/limits/defaults.yaml"
  dpkg-deb --root-owner-group -Zgzip -z1 --build "$next/tree" "$next/weir.deb" >/dev/null
  with_systemd env -u WEIR_HASH_KEY dpkg --install --force-confold "$next/weir.deb"
  grep -q '# edited$' /etc/weir/gateway.yaml || fail "the upgrade lost an edit"
  grep -q '^# another default' /etc/weir/limits/defaults.yaml || fail "an unedited file stays old"
  grep -q 'kill --kill-who=main --signal=USR2 weir.service' "$work/systemctl.log" ||
    fail "no successor: $(cat "$work/systemctl.log")"

  say "an upgrade whose successor cannot be started is complete nevertheless"
  KILL=1 with_systemd dpkg --install --force-confold "$next/weir.deb"
  grep -q USR2 "$work/systemctl.log" || fail "no successor was tried"

  say "remove, then purge"
  mkdir -p /var/lib/private/weir
  touch /etc/weir/weir.env
  with_systemd dpkg --remove weir
  grep -q 'stop weir.socket weir.service' "$work/systemctl.log" || fail "the service is not stopped"
  [ ! -e /usr/bin/weir ] && [ -e /etc/weir/gateway.yaml ] || fail "remove keeps settings alone"
  dpkg --purge weir
  [ ! -e /etc/weir ] && [ ! -e /var/lib/private/weir ] || fail "purge leaves something behind"
}

image() {
  command -v buildah >/dev/null || { skip "the image: buildah is not installed"; return; }
  [ $is_static = yes ] || { skip "the image, which has no libraries"; return; }
  local architecture=amd64 container root health
  [ "$machine" = x86_64 ] || architecture=arm64
  export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
  buildah build --quiet --format docker --build-arg TARGETARCH=$architecture \
    --tag weir-test "$release/image" >/dev/null
  container=$(buildah from weir-test)
  root=$(buildah mount "$container")
  chroot --userspec=65534:65534 "$root" /usr/bin/weir --version
  health=$(buildah inspect --type image --format '{{.Docker.Config.Healthcheck.Test}}' weir-test)
  [ "$health" = "[CMD /usr/bin/weir health --admin 127.0.0.1:9901]" ] ||
    fail "the health check reads the configuration, or there is none: $health"
  buildah rm "$container" >/dev/null
  buildah rmi weir-test >/dev/null
}

trap 'rm -rf "$work"' EXIT
say "checksums, manifest and bill of materials"
checksums
say "the archive"
archive
say "the wheel"
wheel
say "the npm package"
npm_package
say "the image"
image
debian
say "all is well"
for what in "${skipped[@]}"; do
  echo "NOT CHECKED: $what"
done

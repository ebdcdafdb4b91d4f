# What scripts/demo and scripts/bench share: starting engines and the router, and ending what was started. Sourced.
#
# Every process started here is a child of the script and is ended by its own id, whatever way the script ends.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/trieway.XXXXXX")
children=()
# Children also end when the script is killed in a way that it cannot see, where util-linux can arrange it.
leash=""
if command -v setpriv >/dev/null; then leash="setpriv --pdeathsig TERM"; fi

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "$(basename "$0"): $*"
  exit 1
}

# Ends one child and waits for it.
stop() {
  kill "$1" 2>/dev/null || true
  for _ in $(seq 50); do
    kill -0 "$1" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

# Runs a command to its end; a signal to the script ends it at once, which it would not in the foreground. (Not for cargo:
# its compilers only end with the terminal's own signal, which reaches the foreground alone.)
run() {
  $leash "$@" &
  local pid=$! status=0
  children+=("$pid")
  wait "$pid" || status=$?
  unset 'children[-1]'
  return "$status"
}

stop_all() {
  for pid in "${children[@]}"; do stop "$pid"; done
  children=()
}

clean_up() {
  stop_all
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

build() {
  command -v cargo >/dev/null || fail "cargo is missing: install a Rust toolchain, https://rustup.rs"
  say "Building (the first time takes some minutes) …"
  cargo build --manifest-path "$root/Cargo.toml" --release --locked --package trieway --package trieway-loadtest \
    || fail "the build failed, see above"
  target=$(cargo metadata --manifest-path "$root/Cargo.toml" --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
  trieway=$target/release/trieway
  loadtest=$target/release/trieway-loadtest
}

# start_engines COUNT FLAG… : COUNT engines in one process on free ports. Sets engine_pid, ports, backends.
start_engines() {
  local count=$1 zeros
  shift
  zeros=$(printf '0,%.0s' $(seq "$count"))
  : >"$work/ports"
  $pin_load "$loadtest" engine --ports "${zeros%,}" --die-with-parent "$@" >"$work/ports" 2>"$work/engines.log" &
  engine_pid=$!
  children+=("$engine_pid")
  for _ in $(seq 100); do
    [ "$(wc -l <"$work/ports")" -ge "$count" ] && break
    kill -0 "$engine_pid" 2>/dev/null || fail "the engines did not start: $(cat "$work/engines.log")"
    sleep 0.1
  done
  mapfile -t ports <"$work/ports"
  [ "${#ports[@]}" -eq "$count" ] || fail "the engines did not start: $(cat "$work/engines.log")"
  backends=$(printf 'http://127.0.0.1:%s,' "${ports[@]}")
  backends=${backends%,}
}

# The status of GET PATH on PORT, or nothing.
status_of() {
  local line=""
  {
    exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3 \
      && IFS= read -r -t 2 line <&3
  } 2>/dev/null || true
  { exec 3>&-; } 2>/dev/null || true
  line=${line#* }
  printf '%s' "${line%% *}"
}

# start_router FLAG… : the router in front of $backends on a free port. Sets router_pid, router_port.
start_router() {
  local log=$work/router.log
  : >"$log"
  $leash $pin_router "$trieway" --host 127.0.0.1 --port 0 --static-backends "$backends" "$@" >"$log" 2>&1 &
  router_pid=$!
  children+=("$router_pid")
  router_port=""
  for _ in $(seq 100); do
    router_port=$(sed -n 's|.*listening on http://127\.0\.0\.1:\([0-9]*\).*|\1|p' "$log" | head -n 1)
    [ -n "$router_port" ] && [ "$(status_of "$router_port" /health)" = 200 ] && return
    kill -0 "$router_pid" 2>/dev/null || fail "the router did not start: $(cat "$log")"
    sleep 0.1
  done
  fail "the router is not ready after 10 s: $(cat "$log")"
}

pin_load=""
pin_router=""

# The proxies that scripts/bench and quality.sh compare: how each is found, started and told apart. Sourced, after common.sh.
#
# A rival that is not installed is left out, and said so. Python ones are looked for on PATH, then in
# $TRIEWAY_RIVALS/NAME/bin (a virtual environment each; ~/.cache/trieway-rivals by default).

rivals_home=${TRIEWAY_RIVALS:-$HOME/.cache/trieway-rivals}

# The program of a proxy, or nothing.
program_of() {
  case $1 in
    trieway) printf '%s' "$trieway" ;;
    nginx | haproxy) PATH=$PATH:/usr/sbin:/usr/local/sbin command -v "$1" || true ;;
    *) command -v "$1" || { [ -x "$rivals_home/$1/bin/$1" ] && printf '%s' "$rivals_home/$1/bin/$1"; } || true ;;
  esac
}

how_to_install() {
  case $1 in
    nginx) echo "apt-get install nginx-light" ;;
    haproxy) echo "apt-get install haproxy" ;;
    *) echo "python3 -m venv $rivals_home/$1 && $rivals_home/$1/bin/pip install $1" ;;
  esac
}

version_of() {
  local program
  program=$(program_of "$1")
  case $1 in
    trieway) "$program" --version | cut -d' ' -f2 ;;
    nginx) "$program" -v 2>&1 | sed 's|.*nginx/||' ;;
    haproxy) "$program" -v | sed -n '1s/HAProxy version \([^ ]*\).*/\1/p' ;;
    *) ls -d "${program%/bin/*}"/lib/python*/site-packages/"${1//-/_}"-*.dist-info 2>/dev/null \
      | sed 's/.*-\([0-9][^-]*\)\.dist-info$/\1/' | head -n 1 ;;
  esac
}

nginx_conf() { # DIR PORT BACKENDS
  cat <<CONF
daemon off; worker_processes 1; pid $1/pid; error_log $1/error.log;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000; client_max_body_size 64m; client_body_buffer_size 256k;
  client_body_temp_path $1/b; proxy_temp_path $1/p; fastcgi_temp_path $1/f; uwsgi_temp_path $1/u; scgi_temp_path $1/s;
  upstream engine { $(printf 'server 127.0.0.1:%s; ' $3)keepalive 256; keepalive_requests 1000000000; keepalive_timeout 4s; }
  server {
    listen 127.0.0.1:$2;
    location / { proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
CONF
}

haproxy_conf() { # PORT BACKENDS
  cat <<CONF
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend f
  bind 127.0.0.1:$1
  default_backend b
backend b
  http-reuse always
$(for port in $2; do printf '  server engine%s 127.0.0.1:%s\n' "$port" "$port"; done)
CONF
}

# run_proxy NAME PORT BACKENDS DIR : the proxy in the foreground's place, in front of backends on loopback: their ports, by
# spaces.
run_proxy() {
  local program urls
  urls=$(printf 'http://127.0.0.1:%s ' $3)
  urls=${urls% }
  program=$(program_of "$1")
  case $1 in
    trieway)
      exec $leash $pin_router "$program" --host 127.0.0.1 --port "$2" --static-backends "${urls// /,}" --workers 1 \
        ${ROUTER_FLAGS:-}
      ;;
    nginx)
      nginx_conf "$4" "$2" "$3" >"$4/nginx.conf"
      exec $leash $pin_router "$program" -e "$4/error.log" -p "$4" -c "$4/nginx.conf"
      ;;
    haproxy)
      haproxy_conf "$2" "$3" >"$4/haproxy.cfg"
      exec $leash $pin_router "$program" -db -f "$4/haproxy.cfg"
      ;;
    vllm-router)
      exec $leash $pin_router "$program" --host 127.0.0.1 --port "$2" --worker-urls $urls \
        --policy cache_aware --log-level error --prometheus-host 127.0.0.1 --prometheus-port "$(($2 + 1))"
      ;;
    *)
      exec $leash $pin_router "$program" launch --host 127.0.0.1 --port "$2" --worker-urls $urls \
        --policy cache_aware --log-level error --prometheus-host 127.0.0.1 --prometheus-port "$(($2 + 1))"
      ;;
  esac
}

declare -A proxy_pid proxy_port

# start_proxy KEY NAME BACKENDS : on a free port, ready to pass requests on. False: it did not start, and a line says why.
start_proxy() {
  local dir=$work/$1 port pid
  mkdir -p "$dir"
  for _ in 1 2 3; do
    port=$((20000 + (RANDOM % 5000) * 2))
    run_proxy "$2" "$port" "$3" "$dir" >"$dir/out" 2>&1 &
    pid=$!
    for _ in $(seq 100); do
      sleep 0.1
      kill -0 "$pid" 2>/dev/null || break
      if [ "$(chat_status "$port")" = 200 ]; then
        children+=("$pid")
        proxy_pid[$1]=$pid
        proxy_port[$1]=$port
        return 0
      fi
    done
    stop "$pid"
  done
  say "$2 did not start: $(tail -n 3 "$dir/out" | tr '\n' ' ')"
  return 1
}

# The status of a chat on PORT: a router is ready once it has found its backend.
chat_status() {
  local line="" body='{"model":"fake-llm","max_tokens":1,"messages":[{"role":"user","content":"wait_us=0 gap_us=0 events=1 "}]}'
  {
    exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3 \
      && IFS= read -r -t 2 line <&3
  } 2>/dev/null || true
  { exec 3>&-; } 2>/dev/null || true
  line=${line#* }
  printf '%s' "${line%% *}"
}

# A process, its children and theirs.
family_of() {
  local pid child
  for pid in "$@"; do
    printf '%s ' "$pid"
    for child in $(cat "/proc/$pid/task/"*/children 2>/dev/null); do family_of "$child"; done
  done
}

# CPU time in ns that a process, its threads and its children have used.
cpu_ns() {
  local pid total=0 ns rest file
  for pid in $(family_of "$1"); do
    for file in "/proc/$pid/task/"*/schedstat; do
      read -r ns rest <"$file" && total=$((total + ns))
    done
  done
  printf '%s' "$total"
}

# Resident memory in KiB, children included.
resident_kib() {
  local pid total=0 kib
  for pid in $(family_of "$1"); do
    kib=$(sed -n 's/^VmRSS:\s*\([0-9]*\).*/\1/p' "/proc/$pid/status")
    total=$((total + ${kib:-0}))
  done
  printf '%s' "$total"
}

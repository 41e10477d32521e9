# The common part of the peers' `run` scripts, which source this file. A script defines what to
# install and what to start, and ends with `peer "$@"`.
#
#   run install   installs the pinned versions where they are not yet installed
#   run serve     starts the server on a free port of 127.0.0.1, prints its URL as the
#                 first line of its output once it accepts connections, and serves until
#                 its input closes or it gets SIGTERM; no process remains
#   run           both
set -euo pipefail

peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$here")
homes=${ROUNDHOUSE_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/roundhouse-peers}
# The folder that this peer is installed into.
home=$homes/$name

fail() { echo "$name: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || fail "$1 is missing; $2"; }

# Node 22 for the peers that need it: the machine's own, or the one that the tests pin.
node_22() {
    local version
    version=$(sed -n 's/^node_version=//p' "$peers/../../tests/setup")
    need node "install Node 20 or newer"
    need npm "install npm, which comes with Node"
    if [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 22 ]; then
        return
    fi
    local prefix=$homes/node-$version
    export PATH=$prefix/node_modules/.bin:$PATH
    [ -x "$prefix/node_modules/.bin/node" ] && return
    echo "$name: installing Node $version" >&2
    mkdir -p "$prefix"
    # The lock serialises concurrent installations.
    flock "$prefix" npm install --prefix "$prefix" --no-audit --no-fund --loglevel=error "node@$version" >&2
}

# The packages of this folder's package-lock.json.
install_npm() {
    node_22
    cp "$here/package.json" "$here/package-lock.json" "$home/"
    (cd "$home" && npm ci --omit=dev --no-audit --no-fund --loglevel=error >&2)
}

# The packages of this folder's requirements.txt, in an environment of their own.
install_pip() {
    need python3 "install Python 3.11 or newer"
    rm -rf "${home:?}/venv"
    python3 -m venv "$home/venv" || fail "the virtual environment was not created; install python3-venv"
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
}

# Installs once, and again when a pinned version, the peer's script or the folder changes: a
# virtual environment does not work in another folder.
installed() {
    mkdir -p "$home"
    exec 9>"$home/.lock"
    flock 9
    local stamp
    stamp=$({
        echo "$home"
        cat "$here"/{run,requirements.txt,package.json,package-lock.json} 2>/dev/null || true
    } | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$home/stamp" 2>/dev/null)" != "$stamp" ]; then
        rm -f "$home/stamp"
        echo "$name: installing into $home" >&2
        install
        echo "$stamp" >"$home/stamp"
    fi
    # Node looks for packages beside the program.
    find "$here" -maxdepth 1 -name '*.mjs' -exec cp {} "$home/" \;
    exec 9>&-
}

accepts() { (exec 8<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints a port on which no process listens, below the range of ephemeral ports.
free_port() {
    local port
    for _ in $(seq 100); do
        port=$((20000 + RANDOM % 12000))
        accepts "$port" || { echo "$port"; return; }
    done
    fail "no free port found"
}

# A peer's preparation, after its server accepts connections and before the URL is printed.
prepare() { :; }
# `store=PID` for a process whose cost is not counted as the server's.
also=
# A temporary folder that `scratch` creates. It is removed when the server has ended.
scratch=
scratch() { scratch=$(mktemp -d); }
# The path of the server's endpoint.
path=/mcp

descendants() {
    local pid
    for pid in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
        echo "$pid"
        descendants "$pid"
    done
}

# end GROUP...: ends process groups and the descendants that have left them, and returns when
# all have ended.
end() {
    local group all=()
    for group in "$@"; do
        local pid
        all+=("-$group")
        for pid in $(descendants "$group"); do all+=("$pid"); done
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    for _ in $(seq 50); do
        local left=0
        for pid in "${all[@]}"; do ! kill -0 -- "$pid" 2>/dev/null || left=1; done
        [ "$left" = 0 ] && return
        sleep 0.1
    done
    for pid in "${all[@]}"; do kill -KILL -- "$pid" 2>/dev/null || true; done
}

# start COMMAND...: runs a command in a process group of its own, so that its children end with
# it. Its output goes to standard error, since standard output is for the URL only.
groups=()
start() {
    set -m
    "$@" </dev/null >&2 9>&- &
    groups+=($!)
    set +m
}

# accepting PORT: waits until the server that was started last accepts connections.
accepting() {
    for _ in $(seq 600); do
        accepts "$1" && return
        kill -0 "${groups[-1]}" 2>/dev/null || fail "the server ended before it accepted connections"
        sleep 0.1
    done
    fail "the server accepted no connection for 60 s"
}

ended() {
    trap "" TERM INT HUP
    kill "${reader:-}" 2>/dev/null || true
    end "${groups[@]}"
    [ -z "$scratch" ] || rm -rf "$scratch"
}

run_server() {
    local port
    port=$(free_port)
    trap ended EXIT
    trap 'exit 0' TERM INT HUP
    # Ends when the standard input of this script ends. Started before the process groups: the
    # kernel stops a process that reads a terminal from another group.
    exec 7<&0
    cat <&7 >/dev/null &
    reader=$!
    serve "$port"
    accepting "$port"
    prepare "$port"
    echo "http://127.0.0.1:$port$path${also:+ $also}"
    # Until the server or the standard input of this script ends.
    wait -n || true
    kill -0 "${groups[-1]}" 2>/dev/null || fail "the server ended unexpectedly"
}

peer() {
    case ${1:-} in
    install) installed ;;
    serve | "") installed; run_server ;;
    *) fail "unknown command $1; use install or serve" ;;
    esac
}

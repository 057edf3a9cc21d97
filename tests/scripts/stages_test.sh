#!/usr/bin/env bash
# shellcheck disable=SC2016  # what the scripts expand
# .ci/stages.sh with commands that pass, fail, are skipped, are killed or do not end: what fails must be told by the exit code, and
# no process may outlive the script.
#   tests/scripts/stages_test.sh STAGES
set -euo pipefail
stages=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
export work_of_test=$work

script() { printf 'source %q || exit\napart=1\n%s\n' "$stages" "$1" >"$work/script"; }
fail() {
  echo "stages_test: $1; the script and what it printed:"
  cat "$work/script" "$work/screen"
  exit 1
}
expect() { grep -qE -- "$1" "$work/screen" || fail "'$1' was not printed"; }
run() {  # run CODE: the script, which must end with that exit code and leave nothing
  local code=0
  TMPDIR=$work/tmp bash "$work/script" 2>&1 | cat >"$work/screen" || code=$?
  [[ $code -eq $1 ]] || fail "exit code $code, not $1"
  [[ -z $(ls -A "$work/tmp") ]] || fail 'a temporary folder was left'
}

# ---- results

script '
beside() { stage first true; skip second "of no use"; }
begin_beside beside
stage third bash -c "echo warning: not read; exit 77"
end_beside
end_stages'
run 0
expect '^ok .* s +0 s  first$'
expect '^skipped: of no use +second$'
expect '^skipped .* s  third$'

script 'stage first bash -c "echo before; echo error: this; exit 3"; stage second true; end_stages'
run 1
expect '^FAILED .* s  first$'
expect '^----- first: bash -c'
expect '^ok .* s  second$'

script '
beside() { stage first false; stage second echo said; }
begin_beside beside
stage third true
end_beside
end_stages'
run 1
expect '^FAILED .* s  first$'
expect '^said$'
expect '^ok .* s  second$'

# ---- killed

script 'stage first bash -c '\''kill -KILL $$'\''; end_stages'
run 1
expect '^FAILED .* s  first$'

script '
beside() { stage first true; kill -KILL $BASHPID; }
begin_beside beside
stage second true
end_beside
end_stages'
run 1
expect 'ended early, with exit code 137$'

# The shell that waits for a command, which is left alone: it must not be what is waited for.
script 'stage first bash -c '\''kill -KILL $PPID; exec sleep infinity'\''; end_stages'
run 1

# ---- a full disk: no file may grow

for said in '' said; do
  for command in 'echo -n' false; do
    script "
trap '' XFSZ
ulimit -f 0
beside() { stage first $command $said; }
begin_beside beside
stage second true
end_beside
end_stages"
    if [[ $command$said == 'echo -n' ]]; then run 0; else run 1 && expect 'a stage failed, of which no line could be written'; fi
  done
done

# ---- interrupted

ended() {  # ended PID: it is no process, or one that nobody asked for its exit code
  local state
  state=$(sed -nE 's/^State:\s+(.).*/\1/p' "/proc/$1/status" 2>/dev/null) || true
  [[ -z $state || $state == Z || $state == X ]]
}
# Each command writes the numbers of its processes into a pipe, which tells that it runs. Should one not be ended, CTest ends this test.
mkfifo "$work/begun"
script '
endless() { echo "$BASHPID" >"$work_of_test/begun"; bash -c '\''echo $$ >"$work_of_test/begun"; sleep infinity; true'\''; }
beside() { stage first endless; }
begin_beside beside
stage second endless
end_beside
end_stages'
for signal in TERM INT HUP; do
  exec 3<>"$work/begun"
  set -m  # else the signal of a keyboard is ignored
  TMPDIR=$work/tmp bash "$work/script" >"$work/screen" 2>&1 &
  set +m
  pids=()
  for _ in 1 2 3 4; do
    read -r pid <&3
    pids+=("$pid")
  done
  kill "-$signal" $!
  code=0
  wait $! || code=$?
  [[ $code -eq $((128 + $(kill -l "$signal"))) ]] || fail "exit code $code after SIG$signal"
  for pid in "${pids[@]}"; do ended "$pid" || fail "process $pid outlived SIG$signal"; done
  [[ -z $(ls -A "$work/tmp") ]] || fail "a temporary folder outlived SIG$signal"
done

# ---- seconds of processors

# Those of what runs beside are not of the stage in which it ends: a pipe is closed when it does.
mkfifo "$work/runs"
script '
computes() { local stat; while read -r -a stat <"/proc/$BASHPID/stat" && ((stat[13] + stat[14] < 3 * ticks)); do :; done; }
beside() { exec 9>"$work_of_test/runs"; stage first computes; }
waits() { cat "$work_of_test/runs"; sleep 0.2; }
begin_beside beside
stage second waits
end_beside
end_stages'
run 0
expect '^ok .* s +[3-9] s  first$'
expect '^ok .* s +[01] s  second$'

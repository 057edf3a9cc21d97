# shellcheck shell=bash disable=SC2317  # the functions are called by .ci/run and tests/scripts/stages_test.sh, which include this file
# Stages of .ci/run: commands that run one after the other, or beside others, each with its result, its time and the seconds of
# processors that it took, and with the lines that tell of a failure. Whether a stage failed is known by exit codes alone, so that
# a full disk, or a process that is killed, hides none. No process of a stage outlives the script, unless that gets SIGKILL.
set -uo pipefail

work=$(mktemp -d) || exit  # summary: a line for each stage; failures: the first lines that tell of each failure
failed=0                   # whether a stage of this shell did
apart=0                    # whether a stage is a process group of its own, which does not read the terminal
beside=                    # the process group of the stages that run beside others
ticks=$(getconf CLK_TCK)

# Compilers, CTest, GoogleTest and the sanitizers.
failure_lines='error:|warning:|\*\*\*(Failed|Timeout|Exception|Not Run)|\[  FAILED|: Failure|Sanitizer'

# Ends the process groups that still run, and removes $work.
clean_up() {
  local groups group tries
  trap '' INT TERM HUP
  read -r -d '' -a groups < <(jobs -p && echo "$beside")
  for group in "${groups[@]}"; do kill -TERM -- "-$group" 2>/dev/null; done
  for group in "${groups[@]}"; do
    for ((tries = 0; tries < 50; ++tries)); do
      kill -0 -- "-$group" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$group" 2>/dev/null
  done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# in_group COMMAND...: in the background, in a process group of its own, whose number is $!
in_group() {
  set -m
  "$@" </dev/null &
  set +m
}

# wait_for_group GROUP: the exit code of its command. What that left behind, as where it was killed, ends too.
wait_for_group() {
  local code=0
  wait "$1" || code=$?
  kill -KILL -- "-$1" 2>/dev/null
  return "$code"
}

# run_logged LOG COMMAND...: what it prints goes to LOG too, and its seconds of processors to LOG.seconds. Only in a shell of its
# own: of this alone the processes that ended are those of the command.
run_logged() {
  local log=$1 code=0 stat
  shift
  "$@" 2>&1 | tee "$log" || code=$?
  read -r -a stat <"/proc/$BASHPID/stat"  # user and system time of the processes that ended: fields 16 and 17
  echo "$(((stat[15] + stat[16]) / ticks))" >"$log.seconds"
  return "$code"
}

stage() {  # stage NAME COMMAND...; 77: the command says why it was skipped
  local name=$1 start=$SECONDS result=ok code=0 log seconds
  shift
  log=$(mktemp -p "$work") || log=$work/log
  printf '\n===== %s\n' "$name"
  if ((apart)); then
    in_group run_logged "$log" "$@"
    wait_for_group $! || code=$?
  else
    (run_logged "$log" "$@") || code=$?
  fi
  if [[ $code -eq 77 ]]; then
    result=skipped
  elif [[ $code -ne 0 ]]; then
    result=FAILED
    failed=1
    {
      echo "----- $name: $*"
      { grep -A 6 -E "$failure_lines" "$log" || tail -n 8 "$log"; } | head -n 16 | cut -c 1-300
    } >>"$work/failures"
  fi
  seconds=$(cat "$log.seconds" 2>/dev/null) || seconds='?'  # of a command that was killed
  printf '%-7s %4d s %5s s  %s\n' "$result" $((SECONDS - start)) "$seconds" "$name" >>"$work/summary"
}

skip() {  # skip NAME WHY
  printf '%-22s  %s\n' "skipped: $2" "$1" >>"$work/summary"
}

# What begin_beside runs: its exit code is 1 where a stage of it failed.
run_beside() {
  failed=0
  apart=0
  "$@"
  return "$failed"
}

# begin_beside COMMAND...: runs the stages of a function beside the next ones; end_beside waits for them and prints what they did.
begin_beside() {
  in_group run_beside "$@" >"$work/beside" 2>&1
  beside=$!
}

end_beside() {
  local code=0
  wait_for_group "$beside" || code=$?
  beside=
  if ((code != 0)); then failed=1; fi
  if ((code > 1)); then
    echo "----- the stages beside these ended early, with exit code $code" >>"$work/failures"
  fi
  cat "$work/beside" || failed=1
}

# Prints what each stage took and what failed first in each, and exits with 0 only if all passed.
end_stages() {
  printf '\n===== summary, %d s\n' "$SECONDS"
  echo 'result    time  of processors'
  cat "$work/summary" || failed=1
  if [[ -s $work/failures ]]; then
    cat "$work/failures"
    failed=1
  elif ((failed)); then
    echo '----- a stage failed, of which no line could be written'
  fi
  exit "$failed"
}

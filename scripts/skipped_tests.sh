#!/usr/bin/env bash
# What CTest skipped in its last run, and why: for each reason the tests, as `make test` prints them at its end.
#   scripts/skipped_tests.sh BUILD [--all]       BUILD: a build folder; without --all three names a reason
set -euo pipefail
build=${1:?usage: scripts/skipped_tests.sh BUILD [--all]}
most=3
[[ ${2:-} == --all ]] && most=1000000
record=$build/Testing/Temporary/LastTest.log
[[ -f $record ]] || exit 0
# A test of GoogleTest, of which a program that is one test of CTest has many, says the reason in the lines after
# "FILE:LINE: Skipped", and then its name; any other ends with 77 and says it in one line that begins with "not compared"
# (tests/numpy/run.sh).
awk -v most="$most" '
  function add(reason) {
    if (seen[name]++) return
    if (!(reason in count)) order[++reasons] = reason
    if (++count[reason] <= most) names[reason] = names[reason] "\n    " name
    ++total
  }
  /^[0-9]+\/[0-9]+ Test: / { name = substr($0, index($0, "Test: ") + 6); reading = 0 }
  /^not compared with / { add($0) }
  reading == 1 { sub(/^skipped: /, ""); reason = $0; reading = 2; next }
  reading == 2 && /^\[  SKIPPED \]/ { name = $4; add(reason == "" ? "no reason is given" : reason); reading = 0 }
  /: Skipped$/ { reading = 1 }
  END {
    if (total == 0) exit
    printf "\n%d tests were skipped:\n", total
    for (i = 1; i <= reasons; ++i) {
      reason = order[i]
      printf "  %s: %d%s\n", reason, count[reason], names[reason]
      if (count[reason] > most) printf "    and %d more\n", count[reason] - most
    }
    if (most < 1000000) print "scripts/skipped_tests.sh BUILD --all names every one."
  }
' "$record"

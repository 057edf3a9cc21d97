#!/usr/bin/env bash
# scripts/skipped_tests.sh with a record of CTest: each skipped test is named once, by the name that GoogleTest has for it.
#   tests/scripts/skipped_tests_test.sh SCRIPT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/Testing/Temporary"
cat >"$work/Testing/Temporary/LastTest.log" <<'END'
1/3 Testing: cpu_test.1
1/3 Test: cpu_test.1
[ RUN      ] A.First
file.cpp:3: Skipped
no AMX
[  SKIPPED ] A.First (0 ms)
[ RUN      ] A.Runs
[       OK ] A.Runs (0 ms)
[ RUN      ] X/A.Second/3
file.cpp:9: Skipped
skipped: no GPU
with more to say
[  SKIPPED ] X/A.Second/3 (0 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] A.First
[  SKIPPED ] X/A.Second/3
2/3 Testing: numpy
2/3 Test: numpy
not compared with NumPy: there is none
3/3 Testing: B.Third
3/3 Test: B.Third
file.cpp:3: Skipped
no AMX
[  SKIPPED ] B.Third (0 ms)
END
diff - <(bash "$1" "$work" --all) <<'END'

4 tests were skipped:
  no AMX: 2
    A.First
    B.Third
  no GPU: 1
    X/A.Second/3
  not compared with NumPy: there is none: 1
    numpy
END

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every fault A1 to I9 has its line in docs/known-faults.md, and every `program: test` that a line names exists.
set -euo pipefail
cd "$(dirname "$0")/.."
table=docs/known-faults.md
status=0

for id in A{1..8} B{1..9} C{1..14} D{1..8} E{1..7} F{1..7} G{1..5} H{1..3} I{1..9}; do
    grep -q "^| $id |" "$table" || { echo "$table: no line for $id"; status=1; }
done

while IFS=: read -r program test; do
    test=${test# }
    if [ "$program" = golden ]; then
        [ -d "tests/golden/$test" ]
    else
        grep -qsE "cmocka_unit_test\($test\)" "tests/test_$program.c" "tests/cuda/test_$program.c"
    fi || { echo "$table: there is no test $program: $test"; status=1; }
done < <(grep -oP '`\K[a-z_]+: [^`]+' "$table" | sort -u)
exit $status

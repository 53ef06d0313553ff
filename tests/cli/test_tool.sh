#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_tool.sh MSDA NPY_EDIT GOLDEN PHOTO GROUP: the contract of the tool, seen from outside. GROUP is a function below.
set -u
msda=$1 npy_edit=$2 golden=$3 photo=$4 group=$5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
failures=0

fail() {
    printf 'FAIL: %s\n' "$*"
    sed 's/^/    stdout: /' stdout
    sed 's/^/    stderr: /' stderr
    failures=$((failures + 1))
}

# run STATUS ARGUMENT...: runs msda and checks its exit status.
run() {
    local wanted=$1 status
    shift
    "$msda" "$@" >stdout 2>stderr
    status=$?
    [ $status -eq "$wanted" ] || fail "exit $status, not $wanted: msda $*"
}

# refuse TEXT ARGUMENT...: exit 2, nothing on standard output, and one line on standard error that has TEXT in it.
refuse() {
    local text=$1
    shift
    run 2 "$@"
    [ -s stdout ] && fail "prints although it refuses: msda $*"
    [ "$(wc -l <stderr)" -eq 1 ] || fail "not one line: msda $*"
    grep -qF -- "$text" stderr || fail "does not say '$text': msda $*"
}

says() { grep -qE -- "$1" stdout || fail "does not print '$1'"; }
copy() { rm -rf case && cp -r "$golden/$1" case && chmod -R u+w case; }
edit() { "$npy_edit" "case/$1.npy" "case/$1.npy" "${@:2}" || fail "npy_edit $*"; }

# npy DESCR SHAPE: the start of a file; its data are what follows.
npy() {
    local header="{'descr': '$1', 'fortran_order': False, 'shape': $2, }"
    printf '\223NUMPY\001\000%b\000%s' "\\x$(printf %02x ${#header})" "$header"
}

# full_disk TEXT ARGUMENT...: exit 2 with TEXT when nothing can be written to any file.
full_disk() {
    (trap '' XFSZ && ulimit -f 0 && "$msda" "${@:2}" 2>&1 && echo fine) | cat >stdout
    grep -qF -- "$1" stdout || fail "a full disk: ${*:2}"
}

# ---- usage -----------------------------------------------------------------------------------------------------------

usage() {
    run 0 --help && says '^usage: msda run'
    run 0 -h && run 0 help && run 0 check --help && says 'exit status'
    run 0 --version && says '^msda [0-9]+\.[0-9]+\.[0-9]+$'
    run 0 info && says '^version +[0-9]' && says '^cpu instruction set +(scalar|avx2|avx512|neon)' && says '^cuda'
    MSDA_CPU_ISA=scalar run 0 info && says '^cpu instruction set +scalar'
    refuse 'which command'
    refuse "unknown command 'sum'" sum
    refuse "unexpected argument 'x'" info x
    refuse 'which folder' check
    refuse 'which folder' run --threads 2
    refuse 'unknown flag --frobnicate' check "$golden/one_point" --frobnicate
    refuse 'unknown flag -x' run "$golden/one_point" -x
    refuse '--dtype needs a value' run "$golden/one_point" --dtype
    refuse 'no value belongs to --align-corners=1' run "$golden/one_point" --align-corners=1
    refuse "unexpected argument 'more'" run "$golden/one_point" more
    refuse "unexpected argument '--more'" run "$golden/one_point" -- --more
    refuse "--backend: 'gpu' is none of naive, cpu, cuda" run "$golden/one_point" --backend gpu
    refuse "--dtype: 'f8' is none of" run "$golden/one_point" --dtype f8
    refuse "--threads: 'two' is not a whole number" run "$golden/one_point" --threads two
    refuse "--threads: '1.5' is not a whole number" run "$golden/one_point" --threads 1.5
    refuse '--threads: -1 is not in 0..4096' run "$golden/one_point" --threads -1
    refuse '--repeat: 0 is not in' run "$golden/one_point" --repeat 0
    refuse '--repeat: 99999999999999999999 is not in' run "$golden/one_point" --repeat 99999999999999999999
    refuse "--rtol: 'x' is not a number" check "$golden/one_point" --rtol x
    refuse '--rtol: nan is not in' check "$golden/one_point" --rtol nan
    refuse '--rtol: -1 is not in' check "$golden/one_point" --rtol -1
    refuse 'unknown flag --rtol' run "$golden/one_point" --rtol 1
    refuse 'unknown flag --out' check "$golden/one_point" --out x
    refuse 'point_dtype' run "$golden/one_point" --dtype f32 --point-dtype f16
    run 0 run "$golden/one_point" --dtype f16 --point-dtype f16 --threads 2 --accumulate deterministic --backend=cpu
    "$msda" info >/dev/full 2>stderr
    [ $? -eq 2 ] || fail 'a full disk goes unnoticed'
}

# ---- check -----------------------------------------------------------------------------------------------------------

# golden_passes CASE FLAG...: exit 0, and a line with "ok" for every tensor that has an expectation.
golden_passes() {
    local case=$1 name printed
    run 0 check "$@"
    printed=$'\n'$(<stdout)
    for name in "$case"/expected/*.npy; do
        name=${name##*/}
        [[ $printed =~ $'\n'${name%.npy}\ [^$'\n']*\ ok\ \( ]] || fail "$name is not ok: $*"
    done
    [ -s stderr ] && fail "talks: $*"
}

# Fused locations in 16 bits are left out: they land on pixel centres, where either slope is right (docs/tool.md).
golden() {
    local case flags cases=0
    for case in "$golden"/*; do
        cases=$((cases + 1))
        for flags in "$@"; do
            [[ $flags = *point-dtype* && -e $case/reference_points.npy ]] && continue
            golden_passes "$case" $flags
        done
    done
    [ $cases -ge 29 ] || fail "only $cases golden cases"
}

check_golden_naive() {
    golden '--backend naive' '--backend naive --dtype f64' '--backend naive --dtype f16' '--backend naive --dtype bf16'
}

check_golden_cpu() {
    golden '' '--dtype f64' '--dtype f32 --accumulate native' '--dtype f16' '--dtype bf16' \
        '--dtype f16 --point-dtype f16' '--dtype bf16 --point-dtype bf16' '--accumulate deterministic --threads 3'
}

check_order() {
    run 0 check "$golden/fused_boxes"
    [ "$(cut -d ' ' -f 1 stdout | tr '\n' ' ')" = \
        'output grad_value grad_sampling_offsets grad_attention_logits grad_reference_points ' ] || fail 'order of lines'
    run 0 check "$golden/ddetr_small"
    [ "$(cut -d ' ' -f 1 stdout | tr '\n' ' ')" = \
        'output grad_value grad_sampling_locations grad_attention_weights ' ] || fail 'order of lines'
}

# spoil TENSOR HINT EDIT...: a spoilt expectation is found, in this tensor alone, and its line suggests HINT.
spoil() {
    copy ddetr_small
    edit "expected/$1" "${@:3}"
    run 1 check case
    grep -qE "^$1 .*FAIL.*$2" stdout || fail "$1 ${*:3}: no '$2'"
    [ "$(grep -c FAIL stdout)" -eq 1 ] || fail "$1 ${*:3}: other tensors fail too"
}

check_spoilt() {
    spoil output 'scale: out is 0.(5|4999)' scale 2
    spoil grad_value 'sign: out is -(1|0.9999)' scale -1
    spoil grad_sampling_locations 'x and y swapped' swap
    spoil grad_attention_weights unrelated roll 37
    spoil grad_value 'borders\? 1 of .* first \[0, 0, 0, 5\]' set 5 3
    spoil output 'NaN or infinity .* first \[0, 0, 2\]' set 2 nan
    spoil output 'NaN or infinity .* first \[0, 0, 2\]' set 2 -inf
    copy ddetr_small
    edit expected/output scale 1.0001
    run 1 check case --dtype f32
    run 0 check case --dtype f16
    run 0 check case --rtol 1e-3
    run 1 check case --rtol 1e-5
    run 1 check "$golden/ddetr_small" --rtol 0
    copy align_corners
    rm case/options
    run 1 check case
    run 0 check case --align-corners
    copy border
    rm case/options
    run 1 check case
    copy discrete
    run 1 check case --sampling bilinear
    copy fused_points
    run 1 check case --anchors
}

# With 16-bit adds thousands of them on one pixel come to a halt, and the tool must not call that good.
check_native() {
    run 0 check "$golden/ddetr_small" --dtype f16 --accumulate native
    run 0 check "$golden/ddetr_small" --dtype bf16 --accumulate native
    run 1 check "$golden/hot_pixel" --dtype f16 --accumulate native
    grep -q '^grad_value .*FAIL' stdout || fail 'hot_pixel passes in native f16'
}

check_missing() {
    copy ddetr_small
    rm case/expected/grad_value.npy
    run 0 check case && says '^grad_value +not checked: no expected/grad_value.npy$'
    rm -r case/expected
    refuse 'case/expected: no tensor' check case
    copy ddetr_small
    rm case/grad_output.npy
    refuse 'case/expected/grad_value.npy: there is no grad_output.npy' check case
    rm case/expected/grad_*
    run 0 check case && says '^output .* ok'
    [ "$(wc -l <stdout)" -eq 1 ] || fail 'more than the forward'
    copy ddetr_small
    edit expected/output axes 22 32
    refuse 'case/expected/output.npy: shape [22, 32], where [2, 11, 32] is needed' check case
    copy ddetr_small
    edit expected/output axes 2 11 4 8
    run 0 check case
    copy ddetr_small
    printf 'x' >case/expected/grad_value.npy
    refuse 'case/expected/grad_value.npy: not a .npy file' check case
}

# ---- run -------------------------------------------------------------------------------------------------------------

run_writes() {
    run 0 run "$golden/ddetr_small" --backend naive --dtype f64 --out made
    says '^output +\[2, 11, 32\]' && says '^grad_attention_weights +\[2, 11, 4, 4, 4\]'
    [ "$(ls made | tr '\n' ' ')" = \
        'grad_attention_weights.npy grad_sampling_locations.npy grad_value.npy output.npy ' ] || fail "files: $(ls made)"
    head -c 128 made/output.npy | grep -q "'<f8'.*(2, 11, 32, )" || fail 'f64 is not written as f8'
    copy ddetr_small
    rm case/expected/* && cp made/* case/expected
    run 0 check case --backend naive --dtype f64 --rtol 0
    run 0 check case
    run 0 run "$golden/ddetr_small" --dtype bf16 --out made
    head -c 128 made/output.npy | grep -q "'<f4'" || fail 'bf16 is not written as f4'
    cp made/* case/expected
    run 0 check case --dtype bf16
    run 1 check case --dtype f32
    run 0 run "$golden/fused_boxes" --out fused
    [ "$(ls fused | tr '\n' ' ')" = 'grad_attention_logits.npy grad_reference_points.npy grad_sampling_offsets.npy grad_value.npy output.npy ' ] ||
        fail "files: $(ls fused)"
    run 0 run "$golden/points_per_level" --out levels
    head -c 128 levels/grad_sampling_locations.npy | grep -q '(2, 9, 4, 12, 2, )' || fail 'shape of the input is lost'
    copy ddetr_small
    rm case/grad_output.npy
    run 0 run case --out forward
    [ "$(ls forward)" = output.npy ] || fail "files: $(ls forward)"
    copy one_point
    edit value set 0 nan
    run 0 run case && says '^output .*NaN or infinite: 1$'
}

run_writes_all_or_nothing() {
    copy ddetr_small
    edit grad_output axes 11 2 32
    refuse 'case/grad_output.npy: shape [11, 2, 32]' run case --out made
    [ -e made ] && fail 'the folder is made although the input is bad'
    refuse 'no/such/made: No such file' run "$golden/ddetr_small" --out no/such/made
    touch file
    refuse 'file/output.npy.part: Not a directory' run "$golden/ddetr_small" --out file
    full_disk 'full/output.npy.part: File too large' run "$golden/ddetr_small" --out full
    [ -e full ] && fail 'a folder is left behind'
    mkdir -p held/output.npy/deep
    refuse 'held/output.npy: ' run "$golden/ddetr_small" --out held
    [ "$(ls held)" = output.npy ] || fail "left behind: $(ls held)"
    [ -d held/output.npy/deep ] || fail 'the folder in the way is gone'
}

run_repeats() {
    run 0 run "$golden/ddetr_small" --repeat 3
    grep -qE '^forward +median [0-9.e+-]+ ms, spread [0-9.e+-]+ \.\. [0-9.e+-]+ ms, 3 runs, cpu f32' stderr || fail 'forward'
    grep -qE '^backward +median ' stderr || fail 'backward'
    [ "$(wc -l <stderr)" -eq 2 ] || fail 'more than the timings'
    run 0 check "$golden/ddetr_small" --backend naive --repeat 2
    grep -q '2 runs, naive loops over double' stderr || fail 'naive'
}

options_file() {
    copy ddetr_small
    printf '  --dtype f64\n\t--backend naive --out ignored --rtol 1e-13 ' >case/options
    run 0 check case && says 'tolerance 1e-13'
    run 1 check case --dtype bf16
    run 0 check case --dtype bf16 --rtol 1e-2
    [ -e ignored ] && fail 'check writes'
    printf -- '--align-corners' >case/options
    run 1 check case
    run 0 check case --no-align-corners
    copy fused_anchors
    printf -- '--anchors' >case/options
    run 0 check case
    printf -- '--wrong' >case/options
    refuse 'case/options: unknown flag --wrong' check case
    printf -- '--dtype f3' >case/options
    refuse "case/options: --dtype: 'f3' is none of" check case
    printf -- '--dtype' >case/options
    refuse 'case/options: --dtype needs a value' check case
    printf 'more' >case/options
    refuse "case/options: unexpected argument 'more'" check case
    printf -- '--anchors\0' >case/options
    refuse 'case/options: not a text file' check case
    head -c 5000 /dev/zero | tr '\0' ' ' >case/options
    refuse 'case/options: larger than 4096 bytes' check case
    rm case/options && mkdir case/options
    refuse 'case/options: cannot be read' check case
}

# ---- bad folders -----------------------------------------------------------------------------------------------------

bad_input() {
    refuse 'none/value.npy: No such file or directory' check none
    touch file
    refuse 'file/value.npy: Not a directory' check file
    local name
    for name in value sampling_locations attention_weights spatial_shapes level_start_index grad_output; do
        copy ddetr_small
        printf '\223NUMPX' >case/$name.npy
        refuse "case/$name.npy: not a .npy file" run case --out made
        head -c 100 "$golden/ddetr_small/$name.npy" >case/$name.npy
        refuse "case/$name.npy: truncated header" run case --out made
        head -c 140 "$golden/ddetr_small/$name.npy" >case/$name.npy
        refuse "case/$name.npy: truncated" run case --out made
        { cat "$golden/ddetr_small/$name.npy" && echo; } >case/$name.npy
        refuse "case/$name.npy: trailing bytes" run case --out made
        sed '1s/False, /True,  /' "$golden/ddetr_small/$name.npy" >case/$name.npy
        refuse "case/$name.npy: Fortran order" run case --out made
        sed "1s/'</'>/" "$golden/ddetr_small/$name.npy" >case/$name.npy
        refuse "case/$name.npy: big-endian" run case --out made
        sed '1s/(\([0-9]*\),/(-1,/' "$golden/ddetr_small/$name.npy" >case/$name.npy
        refuse "case/$name.npy: negative" run case --out made
        rm case/$name.npy && mkdir case/$name.npy
        refuse "case/$name.npy: not a regular file" run case --out made
        rmdir case/$name.npy
        case $name in
        level_start_index | grad_output) ;;
        *) refuse "case/$name.npy: No such file" run case --out made ;;
        esac
        [ -e made ] && fail "writes although $name.npy is bad"
    done
}

bad_sizes() {
    local huge=4294967296
    refuse 'name too long' check "$(printf '%4050s' x)"
    refuse 'name too long' run "$golden/one_point" --out "$(printf '%4050s' x)"
    copy one_point
    npy '<f4' "($huge, 0, 1, 1)" >case/value.npy
    refuse 'case/value.npy: batch, heads or channels past 2^31' run case
    copy one_point
    { npy '<i8' '(65, 2)' && head -c 1040 /dev/zero; } >case/spatial_shapes.npy
    refuse 'case/spatial_shapes.npy: 65 levels; at most 64' run case
    { npy '<i8' '(1, 2)' && head -c 16 /dev/zero; } >case/spatial_shapes.npy
    refuse 'case/spatial_shapes.npy: 0 is not in 1..2147483647' run case
    { npy '<i4' '(3, 2)' && for _ in 1 2 3 4 5 6; do printf '\377\377\377\177'; done; } >case/spatial_shapes.npy
    refuse 'case/spatial_shapes.npy: more pixels than 2^63' run case
    copy one_point
    npy '<f4' "(1, $huge, 1, 1, 0, 2)" >case/sampling_locations.npy
    refuse 'case/sampling_locations.npy: more queries or points than 2^31' run case
    copy one_point
    rm case/sampling_locations.npy case/attention_weights.npy case/grad_output.npy
    npy '<f4' '(1, 0, 1, 1, 1, 2)' >case/sampling_offsets.npy
    npy '<f4' '(1, 0, 1, 1, 1)' >case/attention_logits.npy
    npy '<f4' "(1, 0, $huge, 2)" >case/reference_points.npy
    refuse 'case/reference_points.npy: more anchors than 2^31' run case
    npy '<f4' '(1, 0, 0, 2)' >case/reference_points.npy
    refuse 'num_anchors' run case
    npy '<f4' '(1, 0, 1, 2)' >case/reference_points.npy
    run 0 run case && says '^output +\[1, 0, 1\]'
}

bad_shapes() {
    copy ddetr_small
    edit value axes 2 109 32
    refuse 'case/value.npy: 3 axes' run case
    copy ddetr_small
    edit value axes 2 218 2 8
    refuse 'case/sampling_locations.npy: shape [2, 11, 4, 4, 4, 2], where [2, any, 2, 4, any, 2]' run case
    copy ddetr_small
    edit sampling_locations axes 2 11 4 16 2
    refuse 'case/sampling_locations.npy: shape' run case
    copy ddetr_small
    edit attention_weights axes 2 11 16 4
    refuse 'case/attention_weights.npy: shape' run case
    copy ddetr_small
    edit attention_weights axes 2 11 4 16
    run 0 run case
    copy ddetr_small
    cp case/value.npy case/spatial_shapes.npy
    refuse 'case/spatial_shapes.npy: not integers' run case
    copy ddetr_small
    cp case/spatial_shapes.npy case/value.npy
    refuse 'case/value.npy: integers, where' run case
    copy ddetr_small
    cp case/level_start_index.npy case/spatial_shapes.npy
    refuse 'case/spatial_shapes.npy: shape [4], where [any, 2]' run case
    copy ddetr_small
    cp "$golden/points_per_level/points_per_level.npy" case/level_start_index.npy
    refuse 'case/level_start_index.npy: shape [3], where [4]' run case
    copy batch_5
    edit value axes 1 505 3 4
    refuse 'case/value.npy: 505 rows, where spatial_shapes.npy has 101 pixels' run case
    copy points_per_level
    rm case/points_per_level.npy
    refuse 'case/sampling_locations.npy: shape' run case
    copy fused_boxes
    edit reference_points axes 2 3 7 4
    refuse 'case/reference_points.npy: shape' run case
    copy fused_boxes
    refuse 'case/reference_points.npy: shape' run case --anchors
    copy fused_points
    edit reference_points axes 2 7 2 4
    refuse 'case/reference_points.npy: shape' run case
}

cuda() {
    run 0 info
    if grep -q '^cuda  *not built' stdout; then
        refuse 'cuda: this msda was built without CUDA' check "$golden/one_point" --backend cuda
    elif grep -q '^cuda devices  *none' stdout; then
        refuse 'cuda: ' check "$golden/one_point" --backend cuda
    else
        local case
        for case in "$golden"/*/; do
            run 0 check "$case" --backend cuda
            run 0 check "$case" --backend cuda --dtype f16
            run 0 check "$case" --backend cuda --dtype bf16 --accumulate deterministic
        done
        run 0 run "$golden/ddetr_small" --backend cuda --repeat 3
        grep -q '3 runs, cuda ' stderr || fail 'timings'
    fi
}

# ---- view ------------------------------------------------------------------------------------------------------------

view() {
    run 0 info
    if grep -q '^view  *not built' stdout; then
        refuse 'built without libpng and cairo' view "$photo" --out picture.png
        return
    fi
    run 0 view "$photo" --out picture.png && says '^picture.png: 21760 queries, 128 points each$'
    head -c 8 picture.png | od -An -tx1 | grep -q '89 50 4e 47 0d 0a 1a 0a' || fail 'not a PNG'
    cp picture.png first.png
    run 0 view "$photo" --out picture.png --query 256,256 --threads 1 && cmp -s picture.png first.png ||
        fail 'the middle in pixels is another picture, or the threads matter'
    run 0 view picture.png --out again.png --query 1599,0 --noise 0.5 --seed 7 --heads 5 --points 2 --levels 6 &&
        says ', 60 points each$'
    refuse 'IMAGE.png is missing' view --out x.png
    refuse '--out OUT.png is missing' view "$photo"
    refuse 'none.png' view none.png --out x.png
    refuse '.: not a regular file' view . --out x.png
    refuse 'no/such/x.png: No such file' view "$photo" --out no/such/x.png
    full_disk 'x.png: ' view "$photo" --out x.png
    refuse 'name too long' view "$photo" --out "$(printf '%5000s' x)"
    head -c 5000 "$photo" >cut.png
    refuse 'cut.png: ' view cut.png --out x.png
    echo text >text.png
    refuse 'text.png: ' view text.png --out x.png
    for query in 512,0 0,512 -1,0 1.5,0.5 0.5 a,b 1,2,3 , nan,nan '1, '; do
        refuse "--query: '$query' is not X,Y" view "$photo" --out x.png --query "$query"
    done
    refuse '--heads: 0 is not in' view "$photo" --out x.png --heads 0
    refuse '--levels: 7 is not in' view "$photo" --out x.png --levels 7
    refuse '--noise: -1 is not in' view "$photo" --out x.png --noise -1
    [ "$(ls ./*x.png* 2>/dev/null)" = '' ] || fail 'a picture is left behind'
}

"$group"
[ $failures -eq 0 ] || { echo "$failures failed"; exit 1; }
echo "$group: passed"

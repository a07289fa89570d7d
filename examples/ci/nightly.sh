#!/bin/sh
# Every night: tune, and if the result is whole, right and no slower than what builds use, lock it for them.
#
#     nightly.sh NAME JOB.yaml
#
# Writes libs/NAME, libs.lock and libs.snapshot, to be committed (or kept) together. Exits with 1 and changes nothing if
# the new library is wrong or slower. SHAPEWRIGHT_URL and SHAPEWRIGHT_API_KEY say which service.
set -eu
name=$1 job=$2
shapewright=${SHAPEWRIGHT:-shapewright}

$shapewright submit "$job" --wait --timeout 7200

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
$shapewright pull "$job" -o "$scratch/new"
if [ -d "libs/$name" ]; then
    $shapewright check "$scratch/new" --against "libs/$name"
else
    $shapewright check "$scratch/new"
fi

digest=$(sed -n 's/^ "digest": "\([0-9a-f]*\)",$/\1/p' "$scratch/new/manifest.json")
$shapewright pull "$job" --digest "$digest" -o "libs/$name" --lock libs.lock
$shapewright snapshot -o libs.snapshot --from libs

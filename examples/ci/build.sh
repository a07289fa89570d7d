#!/bin/sh
# In every build: exactly the libraries of libs.lock, from the service or, if that is away, from the snapshot.
#
#     build.sh DIR
#
# Writes DIR/libs/NAME. Fails if a file differs from what was locked, or a library is not right on this machine.
set -eu
directory=$1
shapewright=${SHAPEWRIGHT:-shapewright}
unreachable=3

status=0
$shapewright pull --locked libs.lock -o "$directory" || status=$?
if [ "$status" -eq "$unreachable" ]; then
    $shapewright pull --locked libs.lock --from libs.snapshot -o "$directory"
elif [ "$status" -ne 0 ]; then
    exit "$status"
fi
$shapewright check "$directory/libs"

#!/bin/sh
# File names of .c and .h are unique in the whole tree, and the top level
# holds nothing but the folders and files that belong there.
set -eu
. "$(dirname -- "$0")/lib.sh"

rc=0
twice=$(sources | sed 's|.*/||' | sort | uniq -d)
for n in $twice; do
    echo "'$n' is the name of several files:" $(sources | grep -E "(^|/)$n\$")
    rc=1
done
allowed=" CMakeLists.txt converter mil safetensors quant schema tests models
 tools docs README.md LICENSE CHANGELOG.md CONTRIBUTING.md "
for n in $(files | sed 's|/.*||' | sort -u); do
    case $n in .*) continue ;; esac
    case $(echo " "$allowed" ") in
    *" $n "*) ;;
    *)
        echo "'$n' does not belong at the top level"
        rc=1
        ;;
    esac
done
exit $rc

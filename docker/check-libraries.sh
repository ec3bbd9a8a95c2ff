#!/bin/sh
# Fails where a library asks for one that has gone with its package; those of Debian alone are elsewhere: check-libraries.sh DIRECTORY
set -eu
cd "$1"
find . -type f -name '*.so*' | sed 's|.*/||' | sort -u > /tmp/libraries
find . -type l -name '*.so*' | sed 's|.*/||' >> /tmp/libraries
find . -type f -name '*.so*' -exec readelf -d {} + 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r library; do
    case $library in
        libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libutil.so.*|libgcc_s.so.*|libstdc++.so.*|libz.so.*|ld-linux-*) ;;
        *) grep -qxF "$library" /tmp/libraries || { echo "check-libraries: $library is left out, and something that stays asks for it" >&2; exit 1; } ;;
    esac
done
